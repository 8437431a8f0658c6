// SPDX-License-Identifier: Apache-2.0
#include <map>
#include <sstream>
#include <utility>

#include <fmt/format.h>
#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/exceptions.h>
#include <yaml-cpp/mark.h>
#include <yaml-cpp/parser.h>

#include "lockstep/config/document/tree_builder.h"

namespace lockstep::config {
namespace {

Place place_of(const YAML::Mark& mark) {
  return mark.is_null() ? Place{} : Place{mark.line + 1, mark.column + 1};
}

/// Handles yaml-cpp's events, so that the depth is checked before anything recursive is built.
class YamlHandler : public YAML::EventHandler {
 public:
  YamlHandler(std::string_view text, TreeBuilder& builder) : text_(text), builder_(builder) {}

  void OnDocumentStart(const YAML::Mark& mark) override {
    if (std::exchange(has_document_, true)) {
      builder_.fail(place_of(mark), "a second document begins here; expected only one");
    }
  }
  void OnDocumentEnd() override {}

  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    builder_.null(place_of(mark));
    Node node;
    node.place = place_of(mark);
    remember(anchor, node);
  }

  void OnAlias(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    const auto found = anchors_.find(anchor);
    if (found == anchors_.end()) {
      builder_.fail(place_of(mark), "an alias refers to a value that contains it");
    }
    builder_.copy(found->second, place_of(mark));
  }

  void OnScalar(
      const YAML::Mark& mark,
      const std::string& tag,
      YAML::anchor_t anchor,
      const std::string& value) override {
    const bool quoted = tag == "!";
    refuse_tag(mark, quoted ? "" : tag);
    refuse_open_quote(mark);
    builder_.scalar(value, quoted, place_of(mark));
    if (anchor != YAML::NullAnchor) {
      Node node;
      node.kind = Node::Kind::kScalar;
      node.text = value;
      node.quoted = quoted;
      node.place = place_of(mark);
      remember(anchor, node);
    }
  }

  void OnSequenceStart(
      const YAML::Mark& mark,
      const std::string& tag,
      YAML::anchor_t anchor,
      YAML::EmitterStyle::value /*style*/) override {
    open(Node::Kind::kList, mark, tag, anchor);
  }
  void OnSequenceEnd() override { close(); }

  void OnMapStart(
      const YAML::Mark& mark,
      const std::string& tag,
      YAML::anchor_t anchor,
      YAML::EmitterStyle::value /*style*/) override {
    open(Node::Kind::kMap, mark, tag, anchor);
  }
  void OnMapEnd() override { close(); }

 private:
  void open(
      Node::Kind kind, const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor) {
    refuse_tag(mark, tag);
    builder_.open(kind, place_of(mark));
    open_anchors_.push_back(anchor);
  }

  void close() {
    const Node& node = builder_.close();
    remember(open_anchors_.back(), node);
    open_anchors_.pop_back();
  }

  void remember(YAML::anchor_t anchor, const Node& node) {
    if (anchor != YAML::NullAnchor) {
      anchors_[anchor] = node;
    }
  }

  /// Refuses an open quote at the end of the file, which yaml-cpp accepts before a last newline.
  void refuse_open_quote(const YAML::Mark& mark) const {
    const auto begin = static_cast<size_t>(mark.pos);
    const char quote = begin < text_.size() ? text_[begin] : '\0';
    if (quote != '"' && quote != '\'') {
      return;
    }
    size_t at = begin + 1;
    while (at < text_.size() && (text_[at] != quote || is_escaped_quote(at))) {
      at += text_[at] == quote || (quote == '"' && text_[at] == '\\') ? 2 : 1;
    }
    if (at >= text_.size()) {
      builder_.fail(place_of(mark), "invalid YAML; the quote that begins here is not closed");
    }
  }

  /// Returns whether the quote at `at` is escaped: '' within single quotes.
  bool is_escaped_quote(size_t at) const {
    return text_[at] == '\'' && at + 1 < text_.size() && text_[at + 1] == '\'';
  }

  void refuse_tag(const YAML::Mark& mark, const std::string& tag) const {
    if (!tag.empty() && tag != "?") {
      builder_.fail(
          place_of(mark),
          fmt::format("tags are not supported; got {}; remove it and keep the value", tag));
    }
  }

  std::string_view text_;
  TreeBuilder& builder_;
  std::map<YAML::anchor_t, Node> anchors_;
  std::vector<YAML::anchor_t> open_anchors_;
  bool has_document_ = false;
};

/// Refuses tabs before the first character of a line, which YAML readers interpret differently.
void refuse_leading_tabs(std::string_view text, const TreeBuilder& builder) {
  int line = 1;
  int column = 1;
  bool leading = true;
  for (const char c : text) {
    if (c == '\n') {
      ++line;
      column = 1;
      leading = true;
      continue;
    }
    if (leading && c == '\t') {
      builder.fail({line, column}, "a tab indents the line; expected spaces");
    }
    leading = leading && c == ' ';
    ++column;
  }
}

}  // namespace

void read_yaml(std::string_view text, TreeBuilder& builder) {
  refuse_leading_tabs(text, builder);
  std::istringstream stream{std::string(text)};
  try {
    YAML::Parser parser(stream);
    YamlHandler handler(text, builder);
    if (parser.HandleNextDocument(handler)) {
      parser.HandleNextDocument(handler);  // Fails if there is a second one.
    }
  } catch (const YAML::Exception& error) {
    builder.fail(place_of(error.mark), "invalid YAML; " + error.msg);
  }
}

}  // namespace lockstep::config
