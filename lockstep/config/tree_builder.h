// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lockstep/config/document.h"

namespace lockstep::config {

/// Puts a document together from what a parser meets, in its order, and refuses what parse_document
/// says that it refuses. In a map, keys and values come in turns. Thread safety: none.
class TreeBuilder {
 public:
  explicit TreeBuilder(std::string path) : path_(std::move(path)) {}

  void null(Place place);
  void scalar(std::string text, bool quoted, Place place);
  void open(Node::Kind kind, Place place);
  /// Ends the list or map that was opened last, and returns it; it moves with the next call.
  const Node& close();
  /// Puts in a copy of what an alias at `place` stands for.
  void copy(const Node& node, Place place);
  /// The root, once everything is closed.
  Node take() { return std::move(root_); }

  [[noreturn]] void fail(Place place, const std::string& what) const;

 private:
  bool wants_key() const { return !open_.empty() && open_.back().wants_key; }
  void refuse_as_key(Place place, const char* what) const;
  /// Counts a node at `place`, `depth` levels down, and all below it.
  void charge(const Node& node, Place place, size_t depth);
  const Node& attach(Node node);
  void add_key(std::string text, Place place);

  struct Level {
    Node node;
    bool wants_key = false;  ///< A map whose entries are all complete.
  };

  std::string path_;
  std::vector<Level> open_;
  Node root_;
  size_t nodes_ = 0;
  size_t bytes_ = 0;
};

/// Where the byte at `offset` stands; the end for one behind it.
Place place_at(std::string_view text, size_t offset);

/// Tells `builder` what is in `text`. ConfigError for what is malformed.
void read_yaml(std::string_view text, TreeBuilder& builder);
void read_json(std::string_view text, TreeBuilder& builder);

/// Commented JSON as JSON of the same length, in which everything stands where it stood.
/// ConfigError by way of `builder` for a comment that does not end.
std::string without_comments(std::string_view text, const TreeBuilder& builder);

}  // namespace lockstep::config
