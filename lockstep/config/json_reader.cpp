// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "lockstep/config/tree_builder.h"

namespace lockstep::config {
namespace {

using Json = nlohmann::json;

/// Follows the parser through the text, to say where the token stands that it just met: nlohmann
/// tells what, not where. The text is valid up to there.
class Walker {
 public:
  explicit Walker(std::string_view text) : text_(text) {}

  /// Where the next token begins; goes behind it. `token` is set to its text.
  Place next(std::string_view& token) {
    skip_between();
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
      while (at_ < text_.size() && !is_between(text_[at_]) && !is_bracket(text_[at_])) {
        step();
      }
    }
    token = text_.substr(begin, at_ - begin);
    return place;
  }

 private:
  static bool is_bracket(char c) { return c == '[' || c == ']' || c == '{' || c == '}'; }
  static bool is_between(char c) {
    return c == ' ' || c == '\t' || c == '\r' || c == '\n' || c == ',' || c == ':';
  }

  void skip_between() {
    while (is_between(text_[at_])) {
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

class JsonHandler : public nlohmann::json_sax<Json> {
 public:
  JsonHandler(std::string_view text, TreeBuilder& builder)
      : text_(text), builder_(builder), walker_(text) {}

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
    const std::string got = token.substr(token.size() - std::min<size_t>(token.size(), 20));
    builder_.fail(
        place_at(text_, position == 0 ? 0 : position - 1),
        fmt::format(
            "is no valid JSON; it is right up to here, {}",
            position > text_.size() ? "where it ends too early" : "where it has '" + got + "'"));
  }

 private:
  Place next() { return walker_.next(token_); }

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
  Walker walker_;
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
