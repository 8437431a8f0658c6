// SPDX-License-Identifier: Apache-2.0
#include "lockstep/mesh/mesh_shape.h"

#include <algorithm>
#include <cstddef>
#include <optional>

#include <fmt/format.h>

#include "lockstep/base/env.h"
#include "lockstep/base/error.h"
#include "lockstep/base/text/split.h"
#include "lockstep/base/text/suggest.h"

namespace lockstep {
namespace {

constexpr int kMostRanks = 1 << 20;

/// The name of a size, and the member that holds it.
struct SizeMember {
  const char* name;
  int MeshShape::*size;
};

constexpr std::array kSizes = {
    SizeMember{"pp", &MeshShape::pp},
    SizeMember{"dp_replicate", &MeshShape::dp_replicate},
    SizeMember{"dp_shard", &MeshShape::dp_shard},
    SizeMember{"cp", &MeshShape::cp},
    SizeMember{"sp", &MeshShape::sp},
    SizeMember{"tp", &MeshShape::tp},
    SizeMember{"ep", &MeshShape::ep}};

std::vector<std::string> size_names() {
  std::vector<std::string> names;
  for (const SizeMember& size : kSizes) {
    names.emplace_back(size.name);
  }
  return names;
}

int read_size(const std::string& text, const std::string& name, const std::string& where) {
  const std::optional<int64_t> size = parse_integer(text);
  if (!size || *size < 1 || *size > kMostRanks) {
    throw ConfigError(
        where, fmt::format("{} is '{}'; expected a number of ranks, at least 1", name, text));
  }
  return static_cast<int>(*size);
}

/// Throws ConfigError for sizes that no number of ranks makes possible.
void check_sizes(const MeshShape& shape, const std::string& where) {
  for (const SizeMember& size : kSizes) {
    const bool is_data = size.size == &MeshShape::dp_replicate || size.size == &MeshShape::dp_shard;
    const int least = is_data ? 0 : 1;
    if (shape.*size.size < least || shape.*size.size > kMostRanks) {
      throw ConfigError(
          where,
          fmt::format(
              "the mesh has {} = {}; expected at least {}", size.name, shape.*size.size, least));
    }
  }
  if (shape.cp > 1 && shape.sp > 1) {
    throw ConfigError(
        where,
        fmt::format(
            "the mesh has cp = {} and sp = {}, which both divide the sequence; expected one of "
            "them: cp for ring attention, sp for Ulysses",
            shape.cp,
            shape.sp));
  }
}

}  // namespace

const char* mesh_dim_name(MeshDim dim) {
  return kSizes[static_cast<size_t>(dim)].name;
}

int MeshShape::size(MeshDim dim) const {
  return std::max(1, this->*kSizes[static_cast<size_t>(dim)].size);
}

int MeshShape::ranks() const {
  return pp * replicas() * tp;
}

MeshShape MeshShape::without_data() const {
  MeshShape shape = *this;
  shape.dp_replicate = shape.dp_shard = 1;
  return shape;
}

MeshShape parse_mesh(const std::string& text, const std::string& where) {
  MeshShape shape;
  std::vector<std::string> seen;
  for (const std::string& part : split(text, ',')) {
    const size_t equals = part.find('=');
    const std::string name = part.substr(0, equals);
    const auto size = std::find_if(kSizes.begin(), kSizes.end(), [&](const SizeMember& candidate) {
      return name == candidate.name;
    });
    if (equals == std::string::npos || size == kSizes.end()) {
      throw ConfigError(
          where,
          fmt::format(
              "the mesh has the part '{}'; expected NAME=SIZE with one of pp, dp_replicate, "
              "dp_shard, cp, sp, tp and ep, like tp=2,cp=2{}",
              part,
              did_you_mean(name, size_names())));
    }
    if (std::find(seen.begin(), seen.end(), name) != seen.end()) {
      throw ConfigError(
          where, fmt::format("the mesh '{}' has {} twice; expected it once", text, name));
    }
    seen.push_back(name);
    shape.*size->size = read_size(part.substr(equals + 1), name, where);
  }
  check_sizes(shape, where);
  return shape;
}

std::string mesh_text(const MeshShape& shape) {
  std::string text;
  for (const SizeMember& size : kSizes) {
    if (shape.*size.size > 1) {
      text += fmt::format("{}{}={}", text.empty() ? "" : ",", size.name, shape.*size.size);
    }
  }
  return text;
}

MeshShape mesh_from_environment(const Environment& environment) {
  if (const std::optional<std::string> text = environment.text("LOCKSTEP_MESH")) {
    return parse_mesh(*text, "LOCKSTEP_MESH");
  }
  MeshShape shape;
  if (!environment.boolean("ACCELERATE_USE_PARALLELISM_CONFIG").value_or(false)) {
    return shape;
  }
  for (const SizeMember& size : kSizes) {
    std::string variable = fmt::format("PARALLELISM_CONFIG_{}_SIZE", size.name);
    std::transform(variable.begin(), variable.end(), variable.begin(), [](unsigned char letter) {
      return static_cast<char>(std::toupper(letter));
    });
    if (const std::optional<std::string> text = environment.text(variable)) {
      const int given = read_size(*text, size.name, variable);
      shape.*size.size = given > 1 ? given : shape.*size.size;  // Its launcher sets all, to 1.
    }
  }
  check_sizes(shape, "PARALLELISM_CONFIG_CP_SIZE");
  return shape;
}

MeshShape resolve_mesh(MeshShape shape, int ranks, bool shards) {
  constexpr const char* kWhere = "mesh";
  check_sizes(shape, kWhere);
  if (shape.ranks() > ranks || ranks % shape.ranks() != 0) {
    throw ConfigError(
        kWhere,
        fmt::format(
            "the mesh {} needs a multiple of {} ranks; the job has {}; start that many, or change "
            "the mesh",
            mesh_text(shape),
            shape.ranks(),
            ranks));
  }
  const int rest = ranks / shape.ranks();
  int& filled = shape.dp_replicate == 0 && (shape.dp_shard != 0 || !shards) ? shape.dp_replicate
                                                                            : shape.dp_shard;
  if (filled != 0 && rest > 1) {
    throw ConfigError(
        kWhere,
        fmt::format(
            "the mesh {} has {} ranks; the job has {}; start that many, or omit dp_replicate or "
            "dp_shard, which then has the rest",
            mesh_text(shape),
            shape.ranks(),
            ranks));
  }
  filled = std::max(1, filled) * rest;
  shape.dp_replicate = std::max(1, shape.dp_replicate);
  shape.dp_shard = std::max(1, shape.dp_shard);
  if (shape.replicas() % shape.ep != 0) {
    throw ConfigError(
        kWhere,
        fmt::format(
            "the mesh {} has ep = {}, but {} ranks hold the same part of the model; expected a "
            "divisor of that number",
            mesh_text(shape),
            shape.ep,
            shape.replicas()));
  }
  return shape;
}

void expect_lines_on_hosts(const MeshShape& shape, const std::vector<int>& ranks_of_hosts) {
  for (size_t host = 0; host < ranks_of_hosts.size(); ++host) {
    if (ranks_of_hosts[host] % shape.tp != 0) {
      throw ConfigError(
          "mesh",
          fmt::format(
              "host {} has {} ranks, so the {} ranks of a tp line would be on several hosts; "
              "expected a multiple of {} on each host, since they exchange every layer's "
              "activations",
              host,
              ranks_of_hosts[host],
              shape.tp,
              shape.tp));
    }
  }
}

int mesh_coordinate(const MeshShape& shape, int rank, MeshDim dim) {
  for (auto inner = kMeshDims.rbegin(); *inner != dim; ++inner) {
    rank /= shape.size(*inner);
  }
  return rank % shape.size(dim);
}

std::vector<int> mesh_line(const MeshShape& shape, int rank, const std::vector<MeshDim>& dims) {
  std::vector<int> line;
  for (int other = 0; other < shape.ranks(); ++other) {
    const bool is_on_line = std::all_of(kMeshDims.begin(), kMeshDims.end(), [&](MeshDim dim) {
      return std::find(dims.begin(), dims.end(), dim) != dims.end() ||
             mesh_coordinate(shape, other, dim) == mesh_coordinate(shape, rank, dim);
    });
    if (is_on_line) {
      line.push_back(other);
    }
  }
  return line;
}

std::vector<int> expert_line(const MeshShape& shape, int rank) {
  const std::vector<int> replicas = mesh_line(
      shape, rank, {MeshDim::kDpReplicate, MeshDim::kDpShard, MeshDim::kCp, MeshDim::kSp});
  const auto own = std::find(replicas.begin(), replicas.end(), rank) - replicas.begin();
  const auto begin = replicas.begin() + own / shape.ep * shape.ep;
  return {begin, begin + shape.ep};
}

}  // namespace lockstep
