// SPDX-License-Identifier: Apache-2.0
#include "lockstep/config/document/tree_builder.h"

#include <fmt/format.h>

#include "lockstep/base/error.h"

namespace lockstep::config {
namespace {

// A few aliases of a long text are few values but many bytes.
constexpr size_t kMaxTextBytes = 4 * kMaxDocumentBytes;

Node node_of(Node::Kind kind, Place place) {
  Node node;
  node.kind = kind;
  node.place = place;
  return node;
}

}  // namespace

void TreeBuilder::fail(Place place, const std::string& what) const {
  throw ConfigError(fmt::format("{}:{}:{}", path_, place.line, place.column), what);
}

void TreeBuilder::null(Place place) {
  refuse_as_key(place, "nothing");
  Node node = node_of(Node::Kind::kNull, place);
  count_node(node, place, open_.size() + 1);
  attach(std::move(node));
}

void TreeBuilder::scalar(std::string text, bool quoted, Place place) {
  if (expects_key()) {
    add_key(std::move(text), place);
    return;
  }
  Node node = node_of(Node::Kind::kScalar, place);
  node.text = std::move(text);
  node.quoted = quoted;
  count_node(node, place, open_.size() + 1);
  attach(std::move(node));
}

void TreeBuilder::open(Node::Kind kind, Place place) {
  refuse_as_key(place, kind == Node::Kind::kMap ? "a map" : "a list");
  Node node = node_of(kind, place);
  count_node(node, place, open_.size() + 1);
  open_.push_back({std::move(node), kind == Node::Kind::kMap});
}

const Node& TreeBuilder::close() {
  Node node = std::move(open_.back().node);
  open_.pop_back();
  return attach(std::move(node));
}

void TreeBuilder::copy(const Node& node, Place place) {
  refuse_as_key(place, "an alias");
  count_node(node, place, open_.size() + 1);
  attach(node);
}

void TreeBuilder::refuse_as_key(Place place, const char* what) const {
  if (expects_key()) {
    fail(place, fmt::format("got {} for a key, expected plain text", what));
  }
}

void TreeBuilder::count_node(const Node& node, Place place, size_t depth) {
  if (depth > kMaxDocumentDepth) {
    fail(place, fmt::format("nested too deep; expected at most {} levels", kMaxDocumentDepth));
  }
  ++nodes_;
  bytes_ += node.text.size();
  if (nodes_ > kMaxDocumentNodes || bytes_ > kMaxTextBytes) {
    fail(
        place,
        fmt::format(
            "too many values; expected at most {} values and {} MiB of text, with every alias "
            "(*name) written out",
            kMaxDocumentNodes,
            kMaxTextBytes >> 20));
  }
  for (const Node& item : node.items) {
    count_node(item, place, depth + 1);
  }
  for (const Entry& entry : node.entries) {
    bytes_ += entry.key.size();
    count_node(entry.value, place, depth + 1);
  }
}

const Node& TreeBuilder::attach(Node node) {
  if (open_.empty()) {
    root_ = std::move(node);
    return root_;
  }
  Level& level = open_.back();
  if (level.node.kind == Node::Kind::kList) {
    level.node.items.push_back(std::move(node));
    return level.node.items.back();
  }
  level.expects_key = true;
  level.node.entries.back().value = std::move(node);
  return level.node.entries.back().value;
}

void TreeBuilder::add_key(std::string text, Place place) {
  Level& level = open_.back();
  for (const Entry& entry : level.node.entries) {
    if (entry.key == text) {
      fail(
          place,
          fmt::format(
              "key '{}' is given twice, first in line {}; remove one", text, entry.place.line));
    }
  }
  bytes_ += text.size();
  level.expects_key = false;
  level.node.entries.push_back({std::move(text), place, {}});
}

}  // namespace lockstep::config
