// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lockstep/config/document/document.h"

namespace lockstep::config {

/// Builds a document from parser events, in order, with the checks of parse_document. In a map,
/// keys and values alternate.
class TreeBuilder {
 public:
  explicit TreeBuilder(std::string path) : path_(std::move(path)) {}

  void null(Place place);
  void scalar(std::string text, bool quoted, Place place);
  void open(Node::Kind kind, Place place);
  /// Closes the last opened list or map, and returns it; the next call invalidates it.
  const Node& close();
  /// Adds a copy of the target of an alias at `place`.
  void copy(const Node& node, Place place);
  /// Returns the root, after everything is closed.
  Node take() { return std::move(root_); }

  [[noreturn]] void fail(Place place, const std::string& what) const;

 private:
  bool expects_key() const { return !open_.empty() && open_.back().expects_key; }
  void refuse_as_key(Place place, const char* what) const;
  /// Counts a node at `place`, `depth` levels down, and all nodes below it. Fails for exceeded
  /// limits.
  void count_node(const Node& node, Place place, size_t depth);
  const Node& attach(Node node);
  void add_key(std::string text, Place place);

  struct Level {
    Node node;
    bool expects_key = false;  ///< A map with complete entries only.
  };

  std::string path_;
  std::vector<Level> open_;
  Node root_;
  size_t nodes_ = 0;
  size_t bytes_ = 0;
};

/// Returns the position of the byte at `offset`; the end for a larger offset.
Place place_at(std::string_view text, size_t offset);

/// Reports the content of `text` to `builder`. Throws ConfigError for malformed text.
void read_yaml(std::string_view text, TreeBuilder& builder);
void read_json(std::string_view text, TreeBuilder& builder);

/// Converts commented JSON to JSON of the same length with unchanged positions. Throws ConfigError
/// through `builder` for an unterminated comment.
std::string without_comments(std::string_view text, const TreeBuilder& builder);

}  // namespace lockstep::config
