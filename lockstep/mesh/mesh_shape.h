// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <string>
#include <vector>

namespace lockstep {

class Environment;

/// A dimension of a mesh, in the order of the ranks: those of the last one have consecutive
/// numbers.
enum class MeshDim {
  kPp,           ///< Pipeline parallelism: layers.
  kDpReplicate,  ///< Data parallelism: copies of the model.
  kDpShard,      ///< Data parallelism whose ranks shard a copy (ZeRO, FSDP).
  kCp,           ///< Context parallelism: parts of the sequence, by ring attention.
  kSp,           ///< Sequence parallelism: parts of the sequence, by Ulysses.
  kTp            ///< Tensor parallelism: parts of each layer.
};

inline constexpr std::array kMeshDims = {
    MeshDim::kPp,
    MeshDim::kDpReplicate,
    MeshDim::kDpShard,
    MeshDim::kCp,
    MeshDim::kSp,
    MeshDim::kTp};

/// Returns "pp", "dp_replicate", ...: the names of Accelerate's ParallelismConfig, and pp.
const char* mesh_dim_name(MeshDim dim);

/// The sizes of a mesh, in which the ranks of a job are arranged.
///
///   MeshShape{.dp_shard = 2, .tp = 4}   8 ranks: 0 to 3 compute one batch, 4 to 7 another one.
///
/// Rank r has the coordinates of r written in the mixed base of the sizes, pp first, tp last, as in
/// Accelerate, torchtitan and Megatron-LM. Experts have no dimension of their own: a group of `ep`
/// consecutive ranks of equal pp and tp divides them.
///
/// Thread safety: plain values.
struct MeshShape {
  int pp = 1;
  /// 0 for both: all ranks that the other dimensions leave, in dp_shard if the job shards models,
  /// else in dp_replicate. 0 for one: likewise, if the other one does not divide all of them.
  int dp_replicate = 0;
  int dp_shard = 0;
  int cp = 1;
  int sp = 1;
  int tp = 1;
  int ep = 1;

  int size(MeshDim dim) const;
  /// Returns the number of ranks; sizes that are 0 count as 1.
  int ranks() const;
  /// Returns the ranks that compute different samples.
  int data_ranks() const { return size(MeshDim::kDpReplicate) * size(MeshDim::kDpShard); }
  /// Returns the ranks that hold the same part of the model, and average its gradients.
  int replicas() const { return data_ranks() * cp * sp; }
  /// Returns the dimensions that divide the model or a sample: those without data parallelism.
  MeshShape without_data() const;
  /// Returns whether all ranks hold the full model, and compute samples of their own.
  bool is_data_parallel() const { return pp * cp * sp * tp * ep == 1; }

  bool operator==(const MeshShape&) const = default;
};

/// Reads "tp=2,cp=2", with the names of MeshShape's members. Throws ConfigError, which names
/// `where`, for an unknown name, a repeated one, a number below 1, and cp together with sp.
MeshShape parse_mesh(const std::string& text, const std::string& where);

/// Returns the sizes other than 1 and 0, like "pp=2,tp=2"; empty if there are none.
std::string mesh_text(const MeshShape& shape);

/// Returns the shape of LOCKSTEP_MESH, else that of Accelerate's PARALLELISM_CONFIG_TP_SIZE and the
/// like; the default one without any. Throws ConfigError as parse_mesh does.
MeshShape mesh_from_environment(const Environment& environment);

/// Fills in the sizes that are 0, for a job of `ranks`. `shards`: the job shards models. Throws
/// ConfigError for a shape that does not fit the number of ranks; the message has both.
MeshShape resolve_mesh(MeshShape shape, int ranks, bool shards);

/// Throws ConfigError unless each tp line is on one host, for hosts of these numbers of ranks: its
/// ranks exchange every layer's activations.
void expect_lines_on_hosts(const MeshShape& shape, const std::vector<int>& ranks_of_hosts);

/// Returns the coordinate of a rank in one dimension. `shape`: a resolved one.
int mesh_coordinate(const MeshShape& shape, int rank, MeshDim dim);

/// Returns the ranks that differ from `rank` only in these dimensions, and itself, in order.
std::vector<int> mesh_line(const MeshShape& shape, int rank, const std::vector<MeshDim>& dims);

/// Returns the ranks that share the experts of one model with `rank`, in order: `ep` of them.
std::vector<int> expert_line(const MeshShape& shape, int rank);

}  // namespace lockstep
