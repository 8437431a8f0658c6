// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cctype>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "lockstep/config/document/tree_builder.h"

namespace lockstep::config {
namespace {

using Json = nlohmann::json;

/// Finds the position of the parser's last token, which nlohmann does not report. The text before
/// it is valid.
class TokenLocator {
 public:
  explicit TokenLocator(std::string_view text) : text_(text) {}

  /// Returns the position of the next token and advances past it. Sets `token` to its text.
  Place next(std::string_view& token) {
    skip_separators();
    const Place place = place_;
    const size_t begin = at_;
    const char first = text_[at_];
    step();
    if (first == '"') {
      while (text_[at_] != '"') {
        step(text_[at_] == '\\' ? 2 : 1);
      }
      step();
    } else if (!is_bracket(first)) {
      while (at_ < text_.size() && !is_separator(text_[at_]) && !is_bracket(text_[at_])) {
        step();
      }
    }
    token = text_.substr(begin, at_ - begin);
    return place;
  }

 private:
  static bool is_bracket(char c) { return c == '[' || c == ']' || c == '{' || c == '}'; }
  static bool is_separator(char c) {
    return c == ' ' || c == '\t' || c == '\r' || c == '\n' || c == ',' || c == ':';
  }

  void skip_separators() {
    while (is_separator(text_[at_])) {
      step();
    }
  }

  void step(size_t count = 1) {
    for (size_t i = 0; i < count; ++i) {
      if (text_[at_++] == '\n') {
        ++place_.line;
        place_.column = 1;
      } else {
        ++place_.column;
      }
    }
  }

  std::string_view text_;
  size_t at_ = 0;
  Place place_;
};

bool is_word(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '-' || c == '.';
}

/// Returns the position of the last character before `at` that is not a space; npos without one.
size_t last_nonblank(std::string_view text, size_t at) {
  return at == 0 ? std::string_view::npos : text.find_last_not_of(" \t\r\n", at - 1);
}

/// An offset in a text, and its error.
struct JsonFault {
  size_t at;
  std::string what;
};

/// Returns the trailing comma before a bracket that closes at `at`, if any.
std::optional<JsonFault> trailing_comma(std::string_view text, size_t at) {
  if (at >= text.size() || (text[at] != '}' && text[at] != ']')) {
    return std::nullopt;
  }
  const size_t comma = last_nonblank(text, at);
  const size_t value = comma == std::string_view::npos ? comma : last_nonblank(text, comma);
  constexpr std::string_view kNoValue = ",:[{";
  if (value == std::string_view::npos || text[comma] != ',' ||
      kNoValue.find(text[value]) != std::string_view::npos) {
    return std::nullopt;
  }
  return JsonFault{
      comma,
      fmt::format(
          "invalid JSON; got a comma before '{}', expected none after the last value; remove "
          "the comma",
          text[at])};
}

/// Returns the unquoted or single-quoted word at `at`, if it is in the place of a key.
std::optional<JsonFault> unquoted_key(std::string_view text, size_t at) {
  if (at > 0 && (at >= text.size() || !is_word(text[at])) && is_word(text[at - 1])) {
    --at;  // The parser stops at the character after a word that JSON does not have.
  }
  if (at >= text.size()) {
    return std::nullopt;
  }
  const bool single = text[at] == '\'';
  size_t begin = single ? at + 1 : at;
  while (!single && begin > 0 && is_word(text[begin - 1])) {
    --begin;
  }
  size_t end = begin;
  while (end < text.size() && is_word(text[end])) {
    ++end;
  }
  const size_t start = single ? at : begin;
  const size_t before = last_nonblank(text, start);
  const size_t after = text.find_first_not_of(single ? "' \t\r\n" : " \t\r\n", end);
  const bool is_key = end > begin && before != std::string_view::npos &&
                      (text[before] == '{' || text[before] == ',') &&
                      after != std::string_view::npos && text[after] == ':';
  if (!is_key) {
    return std::nullopt;
  }
  return JsonFault{
      start,
      fmt::format(
          "invalid JSON; got the key {0} in {1} quotes, expected double quotes; write \"{0}\"",
          text.substr(begin, end - begin),
          single ? "single" : "no")};
}

class JsonHandler : public nlohmann::json_sax<Json> {
 public:
  JsonHandler(std::string_view text, TreeBuilder& builder)
      : text_(text), builder_(builder), locator_(text) {}

  bool null() override {
    builder_.null(next());
    return true;
  }
  bool boolean(bool /*value*/) override { return plain(); }
  bool number_integer(number_integer_t /*value*/) override { return plain(); }
  bool number_unsigned(number_unsigned_t /*value*/) override { return plain(); }
  bool number_float(number_float_t /*value*/, const string_t& /*text*/) override { return plain(); }
  bool string(string_t& value) override {
    builder_.scalar(std::move(value), true, next());
    return true;
  }
  bool binary(binary_t& /*value*/) override { return false; }  // JSON has none.
  bool start_object(std::size_t /*elements*/) override {
    builder_.open(Node::Kind::kMap, next());
    return true;
  }
  bool key(string_t& value) override { return string(value); }
  bool end_object() override { return close(); }
  bool start_array(std::size_t /*elements*/) override {
    builder_.open(Node::Kind::kList, next());
    return true;
  }
  bool end_array() override { return close(); }
  bool parse_error(
      std::size_t position,
      const std::string& token,
      const nlohmann::detail::exception& /*error*/) override {
    const size_t at = position == 0 ? 0 : position - 1;
    for (const auto& fault : {trailing_comma(text_, at), unquoted_key(text_, at)}) {
      if (fault) {
        builder_.fail(place_at(text_, fault->at), fault->what);
      }
    }
    const std::string got = token.substr(token.size() - std::min<size_t>(token.size(), 20));
    builder_.fail(
        place_at(text_, at),
        position > text_.size()
            ? "invalid JSON; the text ends too early; close all brackets and quotes"
            : fmt::format(
                  "invalid JSON; got an unexpected '{}'; check quotes, commas and brackets", got));
  }

 private:
  Place next() { return locator_.next(token_); }

  bool plain() {
    const Place place = next();
    builder_.scalar(std::string(token_), false, place);
    return true;
  }

  bool close() {
    next();
    builder_.close();
    return true;
  }

  std::string_view text_;
  TreeBuilder& builder_;
  TokenLocator locator_;
  std::string_view token_;
};

}  // namespace

Place place_at(std::string_view text, size_t offset) {
  const std::string_view before = text.substr(0, std::min(offset, text.size()));
  const size_t line_begin = before.rfind('\n') + 1;  // npos + 1 is 0.
  return {
      static_cast<int>(std::count(before.begin(), before.end(), '\n')) + 1,
      static_cast<int>(before.size() - line_begin) + 1};
}

void read_json(std::string_view text, TreeBuilder& builder) {
  JsonHandler handler(text, builder);
  Json::sax_parse(text, &handler);
}

}  // namespace lockstep::config
