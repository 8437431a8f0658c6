// SPDX-License-Identifier: Apache-2.0
#include "cli/common/report.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <iostream>
#include <system_error>
#include <unistd.h>

#include <fmt/format.h>

#include "lockstep/base/program/terminal.h"
#include "lockstep/base/text/split.h"

namespace lockstep::cli {
namespace {

using Json = nlohmann::json;

constexpr size_t kLeastWidth = 12;  // Narrower names would be unreadable.

bool begins_character(char c) {
  return (static_cast<unsigned char>(c) & 0xc0U) != 0x80U;
}

/// Returns the columns of a text on a terminal, without support for wide characters.
size_t width_of(const std::string& text) {
  return static_cast<size_t>(std::count_if(text.begin(), text.end(), begins_character));
}

/// Narrows the widest column that may be cut until all fit, or no column can be cut.
void fit_widths(std::vector<size_t>& widths, const std::vector<bool>& right, size_t most) {
  const size_t last = widths.size() - 1;
  while (true) {
    size_t total = right[last] ? 2 + widths[last] : 0;
    size_t widest = last;
    for (size_t i = 0; i < last; ++i) {
      total += 2 + widths[i];
      if (!right[i] && (widest == last || widths[i] > widths[widest])) {
        widest = i;
      }
    }
    if (total <= most || widest == last || widths[widest] <= kLeastWidth) {
      return;
    }
    --widths[widest];
  }
}

void print(const std::string& text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
  flush_stdout();
}

int print_json(const std::string& name, Json json, int exit_code) {
  json["schema"] = name + "/1";
  // Paths may have invalid UTF-8.
  print(json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
  return exit_code;
}

}  // namespace

int print_report(const std::string& name, bool json, const std::function<Report()>& make) {
  if (!json) {
    const Report report = make();
    print(report.text);
    return report.exit_code;
  }
  const auto failure = [&](const std::exception& error, int exit_code) {
    return print_json(name, {{"error", error.what()}, {"exit_code", exit_code}}, exit_code);
  };
  Report report;
  try {
    report = make();
  } catch (const ConfigError& error) {
    return failure(error, kExitUsage);
  } catch (const std::exception& error) {
    return failure(error, kExitFailure);
  }
  return print_json(name, std::move(report.json), report.exit_code);
}

std::string render_table(
    const std::vector<std::vector<std::string>>& rows,
    const std::vector<bool>& right,
    size_t most) {
  std::vector<size_t> widths(right.size());
  for (const auto& row : rows) {
    for (size_t i = 0; i < row.size(); ++i) {
      widths[i] = std::max(widths[i], width_of(row[i]));
    }
  }
  if (most > 0) {
    fit_widths(widths, right, most);
  }
  std::string text;
  for (const auto& row : rows) {
    for (size_t i = 0; i < row.size(); ++i) {
      const std::string cell = shortened(row[i], widths[i]);
      const std::string filling(widths[i] - width_of(cell), ' ');
      text += "  " + (right[i] ? filling + cell : cell + filling);
    }
    text.erase(text.find_last_not_of(' ') + 1);
    text += '\n';
  }
  return text;
}

size_t terminal_columns() {
  return static_cast<size_t>(lockstep::terminal_columns(STDOUT_FILENO).value_or(0));
}

std::string shortened(const std::string& text, size_t most) {
  const size_t width = width_of(text);
  if (width <= most || most == 0) {
    return text;
  }
  const size_t left = most / 2;
  const size_t right = most - 1 - left;
  std::string kept;
  size_t seen = 0;
  for (const char c : text) {
    seen += begins_character(c) ? 1 : 0;
    if (seen == left + 1 && begins_character(c)) {
      kept += "…";
    }
    if (seen <= left || seen > width - right) {
      kept += c;
    }
  }
  return kept;
}

std::string wrapped(const std::string& text, size_t columns, const std::string& indent) {
  std::string lines;
  size_t used = 0;
  for (const std::string& word : split(text, ' ')) {
    const size_t width = width_of(word);
    if (used > 0 && used + 1 + width > columns) {
      lines += "\n" + indent;
      used = 0;
    } else if (!lines.empty()) {
      lines += ' ';
      ++used;
    }
    lines += word;
    used += width;
  }
  return lines;
}

void flush_stdout() {
  std::cout.flush();
  if (std::ferror(stdout) == 0) {
    errno = 0;  // Otherwise errno is that of the failed write.
  }
  const bool flushed = std::fflush(stdout) == 0 && std::ferror(stdout) == 0 && std::cout.good();
  if (!flushed) {
    const std::string why =
        errno == 0 ? "an earlier write failed" : std::generic_category().message(errno);
    throw Error("stdout", "cannot be written; " + why + "; the output is incomplete");
  }
}

std::string printable(const std::string& text) {
  // Serializing replaces invalid UTF-8.
  const std::string valid =
      Json::parse(Json(text).dump(-1, ' ', false, Json::error_handler_t::replace))
          .get<std::string>();
  std::string shown;
  for (size_t i = 0; i < valid.size(); ++i) {
    const auto byte = static_cast<unsigned char>(valid[i]);
    const auto next = i + 1 < valid.size() ? static_cast<unsigned char>(valid[i + 1]) : 0;
    // U+0080 to U+009F are control characters, too.
    if (byte == 0xc2 && next < 0xa0) {
      shown += fmt::format("\\x{:02x}", next);
      ++i;
    } else if (byte < 0x20 || byte == 0x7f) {
      shown += fmt::format("\\x{:02x}", byte);
    } else {
      shown += valid[i];
    }
  }
  return shown;
}

std::string with_commas(int64_t number) {
  std::string text = std::to_string(number);
  const size_t first = text.front() == '-' ? 1 : 0;
  for (size_t at = text.size(); at > first + 3; at -= 3) {
    text.insert(at - 3, ",");
  }
  return text;
}

std::string without_folder(const std::string& why, const std::filesystem::path& folder) {
  const std::string own = fmt::format("[{}] ", folder.native());
  if (why.starts_with(own)) {
    return why.substr(own.size());
  }
  const std::string inner = fmt::format("[{}/", folder.native());
  return why.starts_with(inner) ? "[" + why.substr(inner.size()) : why;
}

}  // namespace lockstep::cli
