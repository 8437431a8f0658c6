// SPDX-License-Identifier: Apache-2.0
#include "lockstep/engine/setup/accelerator_options.h"

namespace lockstep {
namespace {

/// What both kinds of offloading have.
template <typename Section, typename Options>
void set_offload(const Section& section, Options& options) {
  options.device = section.device.value;
  if (options.device == OffloadDevice::kNvme) {
    options.nvme_path = section.nvme_path.value.value_or("");
  }
  options.pin_memory = section.pin_memory.value;
}

}  // namespace

void set_offloads(const ds_config::ZeroSection& zero, ZeroPlugin& plugin) {
  OffloadOptimizer& optimizer = plugin.offload_optimizer;
  set_offload(zero.offload_optimizer, optimizer);
  optimizer.ratio = zero.offload_optimizer.ratio.value;
  optimizer.super_offload = zero.offload_optimizer.super_offload.value;
  optimizer.buffer_count = zero.offload_optimizer.buffer_count.value;
  optimizer.pipeline_read =
      zero.offload_optimizer.pipeline_read.value.value_or(optimizer.pipeline_read);
  optimizer.pipeline_write =
      zero.offload_optimizer.pipeline_write.value.value_or(optimizer.pipeline_write);
  set_offload(zero.offload_param, plugin.offload_param);
  plugin.offload_param.max_in_cpu = zero.offload_param.max_in_cpu.value;
}

}  // namespace lockstep
