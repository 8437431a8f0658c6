// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/enum_words.h"
#include "lockstep/base/float_dtype.h"
#include "lockstep/zero_options/offload.h"

namespace lockstep {

/// The format in which `save_state` writes a sharded model. Any number of processes at any stage,
/// and programs without ZeRO, can load either. The optimizer's state is in slices with both.
enum class StateDictType {
  kShardedStateDict,  ///< SHARDED_STATE_DICT: each process writes its shards.
  /// FULL_STATE_DICT: full tensors in model.safetensors, as with data parallel. The main process
  /// gathers and writes one after the other: slower, and the extra memory of each process is one
  /// tensor. With `async`, the main process has a copy of the full model in host memory. Not with
  /// fp32 masters.
  kFullStateDict,
  /// LOCAL_STATE_DICT: the flat memory of one process, for the same number of processes only.
  /// Refused.
  kLocalStateDict
};

template <>
inline constexpr std::array<std::string_view, 3> kWordsOf<StateDictType> = {
    "SHARDED_STATE_DICT", "FULL_STATE_DICT", "LOCAL_STATE_DICT"};

/// Options of ZeRO, which shards training state over the processes. The results equal data
/// parallel's. One model and one optimizer of lockstep::optim, prepared in one call.
struct ZeroPlugin {
  /// 1: shards optimizer state, and gradients from the averaging backward to the update.
  /// Micro-steps that only accumulate keep full gradients and send nothing. 2: always shards
  /// gradients; each micro-step averages its own, and shards are summed. 3: shards parameters too,
  /// including frozen ones; they are unsharded when an operation uses them.
  int64_t stage = 2;
  /// Largest gradient bucket in bytes; smaller ones take less memory. In stage 3 the parameters of
  /// a bucket are unsharded together. None: 25 MiB; in stage 3 a sixteenth of the model, between 1
  /// and 25 MiB.
  std::optional<int64_t> bucket_cap_bytes = std::nullopt;
  /// The same in elements, as in DeepSpeed: of 2 bytes for a model with trained fp16 or bf16
  /// parameters, else 4. Only without bucket_cap_bytes.
  std::optional<int64_t> reduce_bucket_size = std::nullopt;
  /// Stage 3: most unsharded elements at a time, unless one operation needs more. None: as many as
  /// the three largest buckets have.
  std::optional<int64_t> stage3_max_live_parameters = std::nullopt;
  /// Stage 3: parameters of up to this many elements are never sharded.
  int64_t stage3_param_persistence_threshold = 0;
  /// Stage 3: the limit of unsharded elements in all, in the model's order; parameters beyond it
  /// are sharded.
  int64_t stage3_model_persistence_threshold = std::numeric_limits<int64_t>::max();
  /// Stage 3: all-gather the expected next bucket ahead of its use.
  bool stage3_prefetch = true;
  /// Stage 3: the parameters of each module of these classes ("TransformerEncoderLayer", without
  /// namespace and Impl) form one bucket, whatever bucket_cap_bytes is.
  std::vector<std::string> stage3_unit_classes = {};
  /// Stage 3: the format in which save_state writes the parameters. Other stages write full
  /// tensors, except that each process writes its shard of fp32 masters. kFullStateDict cannot
  /// store masters and is refused in every stage with masters.
  StateDictType state_dict_type = StateDictType::kShardedStateDict;
  /// ZeRO++, stage 3: parameters are sent in 8 bits, in blocks of 2048 with a scale each, and
  /// forward and backward use the dequantized values. Updates and checkpoints are exact.
  bool zero_quantized_weights = false;
  /// ZeRO++, stage 3: gradients are sent in 4 bits, in blocks of 512. They are averaged within
  /// groups of zero_hpz_partition_size processes, then between them. If that is 1, the groups are
  /// hosts, if all have the same number of processes.
  bool zero_quantized_gradients = false;
  /// ZeRO++, stage 3: this many consecutive processes keep a secondary shard of the parameters, so
  /// that backward gathers within them. Must divide the number of processes; 0 and 1: none.
  int64_t zero_hpz_partition_size = 1;
  /// ZeRO++, stage 3: each process keeps its shard of the frozen parameters in 8 bits, in blocks of
  /// 2048 with a scale each. A LoRA's base takes a quarter of fp32. They are rounded once, in
  /// prepare(), and saved in that form. Not with offload_param. No effect in one process, as all of
  /// ZeRO++.
  bool zero_quantized_nontrainable_weights = false;
  /// All stages: optimizer state in the host's memory or in files, and the update on the host. Also
  /// in one process.
  OffloadOptimizer offload_optimizer = {};
  /// Stage 3: this process's parameter shards there. Requires offload_optimizer, or a frozen model
  /// prepared without an optimizer.
  OffloadParam offload_param = {};
  /// True: fp16 and bf16 parameters have fp32 masters. False: they are updated in place, in fp32
  /// arithmetic, and rounded after each update, with gradients of their dtype.
  bool fp32_masters = true;
  /// Without masters: true keeps the optimizer's state in fp32; false in the parameters' dtype.
  bool fp32_optimizer_states = true;
  /// With masters: the dtype in which gradients of fp16 and bf16 parameters accumulate: kFloat32
  /// or the parameters' dtype. None: kFloat32 if averages accumulate (stages 2 and 3), else the
  /// parameters'.
  std::optional<FloatDtype> grad_accum_dtype = std::nullopt;
  /// The communication dtype of gradients. kFloat16 or kBfloat16: fp32 gradients are sent in
  /// it, and accumulate in fp32. kFloat32: sums of 16-bit gradients that stage 1 accumulates in
  /// fp32 are sent in fp32. None: the parameters' dtype.
  std::optional<FloatDtype> communication_data_type = std::nullopt;
  /// True: a checkpoint's fp32 weights become the masters of 16-bit parameters. False: their values
  /// rounded to 16 bits do.
  bool load_from_fp32_weights = true;

  bool offloads() const {
    return offload_optimizer.device != OffloadDevice::kNone ||
           offload_param.device != OffloadDevice::kNone;
  }
};

}  // namespace lockstep
