// SPDX-License-Identifier: Apache-2.0
#include "lockstep/mesh/mesh_picture.h"

#include <algorithm>
#include <cstddef>
#include <set>

#include <fmt/format.h>

namespace lockstep {
namespace {

constexpr size_t kMostRows = 64;

/// Returns the dimensions with several ranks, outermost first.
std::vector<MeshDim> divided_dims(const MeshShape& shape) {
  std::vector<MeshDim> dims;
  std::copy_if(kMeshDims.begin(), kMeshDims.end(), std::back_inserter(dims), [&](MeshDim dim) {
    return shape.size(dim) > 1;
  });
  return dims;
}

/// Returns the names of the hosts that have these ranks.
std::string hosts_of(int first, int count, const std::vector<std::string>& hosts) {
  std::string text;
  std::set<std::string> seen;
  for (int rank = first; rank < first + count; ++rank) {
    const std::string& host = hosts.at(static_cast<size_t>(rank));
    if (seen.insert(host).second) {
      text += (text.empty() ? "" : ", ") + host;
    }
  }
  return text;
}

}  // namespace

std::string mesh_picture(const MeshShape& shape, const std::vector<std::string>& hosts) {
  std::vector<MeshDim> outer = divided_dims(shape);
  if (outer.empty()) {
    return "";
  }
  const MeshDim inner = outer.back();
  outer.pop_back();
  const int columns = shape.size(inner);
  const auto rows = static_cast<size_t>(shape.ranks() / columns);
  const size_t digits = std::to_string(shape.ranks() - 1).size();

  std::vector<std::string> labels;
  size_t label_width = 0;
  for (size_t row = 0; row < rows; ++row) {
    std::string label;
    for (const MeshDim dim : outer) {
      label += fmt::format(
          "{}{} {:>{}}",
          label.empty() ? "" : "  ",
          mesh_dim_name(dim),
          mesh_coordinate(shape, static_cast<int>(row) * columns, dim),
          std::to_string(shape.size(dim) - 1).size());
    }
    label_width = std::max(label_width, label.size());
    labels.push_back(std::move(label));
  }

  const bool several_hosts = std::set<std::string>(hosts.begin(), hosts.end()).size() > 1;
  const std::string inner_name = mesh_dim_name(inner);
  std::string text = fmt::format("mesh: {} ({} ranks)\n", mesh_text(shape), shape.ranks());
  text += fmt::format("  {:<{}}  {}", "", label_width, inner_name);
  for (int column = 0; column < columns; ++column) {
    text += fmt::format(" {:>{}}", column, digits);
  }
  text += '\n';
  for (size_t row = 0; row < rows; ++row) {
    if (rows > kMostRows && row == kMostRows / 2) {
      text += fmt::format("  ... {} more rows ...\n", rows - kMostRows);
      row = rows - kMostRows / 2;
    }
    text += fmt::format("  {:<{}}  {:<{}}", labels[row], label_width, "", inner_name.size());
    const int first = static_cast<int>(row) * columns;
    for (int column = 0; column < columns; ++column) {
      text += fmt::format(" {:>{}}", first + column, digits);
    }
    text += several_hosts ? "   on " + hosts_of(first, columns, hosts) + "\n" : "\n";
  }
  return text;
}

}  // namespace lockstep
