// SPDX-License-Identifier: Apache-2.0
#include "cli/report/page.h"

#include <map>
#include <string_view>

namespace lockstep::cli {

// The files of the same name, which CMake puts into the program.
extern const char* const kPageHtml;
extern const char* const kPageCss;
extern const char* const kPageChartsJs;
extern const char* const kPageJs;

namespace {

/// Replaces {{name}} in `text` by values, which are not searched again. All names must exist.
std::string filled(std::string_view text, const std::map<std::string_view, std::string>& values) {
  std::string page;
  for (size_t at = 0; at < text.size();) {
    const size_t begin = text.find("{{", at);
    const size_t end = begin == text.npos ? text.npos : text.find("}}", begin);
    if (end == text.npos) {
      page += text.substr(at);
      break;
    }
    page += text.substr(at, begin - at);
    page += values.at(text.substr(begin + 2, end - begin - 2));
    at = end + 2;
  }
  return page;
}

}  // namespace

std::string html_escaped(const std::string& text) {
  std::string escaped;
  for (const char c : text) {
    switch (c) {
      case '&':
        escaped += "&amp;";
        break;
      case '<':
        escaped += "&lt;";
        break;
      case '>':
        escaped += "&gt;";
        break;
      case '"':
        escaped += "&quot;";
        break;
      case '\'':
        escaped += "&#39;";
        break;
      default:
        escaped += c;
    }
  }
  return escaped;
}

std::string script_json(const nlohmann::ordered_json& json) {
  const std::string text =
      json.dump(-1, ' ', true, nlohmann::ordered_json::error_handler_t::replace);
  std::string escaped;
  escaped.reserve(text.size());
  for (const char c : text) {
    switch (c) {  // Only strings have them.
      case '<':
        escaped += "\\u003c";
        break;
      case '>':
        escaped += "\\u003e";
        break;
      case '&':
        escaped += "\\u0026";
        break;
      default:
        escaped += c;
    }
  }
  return escaped;
}

std::string make_page(const std::string& title, const nlohmann::ordered_json& data) {
  return filled(
      kPageHtml,
      {{"title", html_escaped(title)},
       {"css", kPageCss},
       {"charts", kPageChartsJs},
       {"js", kPageJs},
       {"data", script_json(data)}});
}

}  // namespace lockstep::cli
