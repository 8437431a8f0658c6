// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <string>
#include <vector>

/// Pipeline schedules as lists of actions: the order in which each rank computes the micro-batches.
///
/// The model is cut into chunks, and chunk c is on rank c % ranks, as in Megatron and torch. All
/// chunks of a rank are its stage. (torch calls each chunk a stage.) All functions are pure,
/// thread-safe, and need no torch.
namespace lockstep::pipeline_schedule {

/// The order of a pipeline's computations.
///
/// p ranks, v chunks on each rank, m micro-batches; F, B and W are the times of one chunk's forward
/// and of its backward for inputs and for weights. The idle time of each rank, for m >= p:
enum class ScheduleKind {
  /// All forwards, then all backwards: (p - 1)(F + B + W). Huang et al., "GPipe", 2019.
  kGPipe,
  /// One forward, one backward: (p - 1)(F + B + W), with fewer activations. Narayanan et al.,
  /// "Memory-Efficient Pipeline-Parallel DNN Training", 2021.
  k1F1B,
  /// 1F1B with several chunks on each rank: (p - 1)(F + B + W), where a chunk's times are 1/v of
  /// those of all the rank's layers. Narayanan et al., "Efficient Large-Scale Language Model
  /// Training on GPU Clusters Using Megatron-LM", 2021.
  kInterleaved,
  /// 1F1B whose backwards for weights wait until a rank would be idle: (p - 1)(F + B - W), if W is
  /// at most F and at most B. With one chunk on each rank it is ZB-H1 of Qi et al., "Zero Bubble
  /// Pipeline Parallelism", 2023, with several torch's ScheduleInterleavedZeroBubble.
  kZeroBubble
};

inline constexpr std::array kScheduleKinds = {
    ScheduleKind::kGPipe,
    ScheduleKind::k1F1B,
    ScheduleKind::kInterleaved,
    ScheduleKind::kZeroBubble};

/// Returns the name in options and messages: "gpipe", "1f1b", "interleaved" or "zero-bubble".
std::string name_of(ScheduleKind kind);

/// The arguments of a schedule; all numbers at least 1.
struct ScheduleShape {
  ScheduleKind kind = ScheduleKind::k1F1B;
  int ranks = 1;
  int chunks_per_rank = 1;
  int micro_batches = 1;
};

enum class ActionKind {
  kForward,
  kBackward,        ///< Gradients of the inputs and of the weights.
  kBackwardInput,   ///< Gradients of the inputs only; the weights' follow in kBackwardWeight.
  kBackwardWeight,  ///< Gradients of the weights only.
  // Messages: the outputs of chunk c to chunk c + 1, and their gradients back.
  kSendActivation,
  kReceiveActivation,
  kSendGradient,
  kReceiveGradient
};

/// One step of a rank.
struct Action {
  ActionKind kind = ActionKind::kForward;
  int chunk = 0;  ///< A chunk of the rank that executes the action: its sender, or its receiver.
  int micro_batch = 0;

  bool operator==(const Action&) const = default;
};

/// The actions of each rank, in the order of execution: [rank][step].
using ActionLists = std::vector<std::vector<Action>>;

/// Describes an action for messages: "backward of chunk 2, micro-batch 5".
std::string describe(const Action& action);

/// Returns the computations of every rank. The rank 0 of a zero-bubble schedule has kBackward for
/// chunk 0, whose input gradients nobody needs; all other backwards of the schedule are split.
///
/// The order of kGPipe, k1F1B and kInterleaved is that of torch.distributed.pipelining; that of
/// kZeroBubble, too, except that torch also splits the backwards of chunk 0 on rank 0.
///
/// Throws ConfigError for a number below 1, for more than one chunk on each rank with kGPipe and
/// k1F1B, for fewer than two with kInterleaved, and if several chunks on each rank do not fit
/// `micro_batches`: those are computed in max(1, micro_batches / ranks) rounds of equal size (the
/// rule of torch; Megatron asks for a multiple of the ranks, which always fits). Throws it as well
/// for more than 10 million forwards in total.
///
/// Cost: linear in the number of actions, 12 bytes each.
ActionLists compute_actions(const ScheduleShape& shape);

}  // namespace lockstep::pipeline_schedule
