// SPDX-License-Identifier: Apache-2.0
#include "lockstep/accelerator/step_recording.h"

#include <string>
#include <unistd.h>
#include <utility>

#include <nlohmann/json.hpp>

#include <ATen/Parallel.h>
#include <torch/version.h>

#include "lockstep/base/env.h"
#include "lockstep/base/host/machine.h"
#include "lockstep/precision/precision.h"

namespace lockstep {
namespace {

using OrderedJson = nlohmann::ordered_json;

/// Describes the process and its machine: the environment of the run in a report.
OrderedJson header_of(const RunContext& context) {
  const Machine machine = describe_machine();
  const AcceleratorOptions& options = context.options;
  const Environment environment = Environment::process();
  OrderedJson header = {
      {"rank", context.rank()},
      {"world", context.size()},
      {"restart", context.world.restart_count},
      {"time", tracking::wall_time_s()},
      {"run_id", environment.text("TORCHELASTIC_RUN_ID").value_or("")},
      {"pid", ::getpid()},
      {"host", machine.system.host}};
  header["environment"] = OrderedJson{
      {"launcher", context.world.source},
      {"processes", context.size()},
      {"processes_per_host", context.world.local_size},
      {"transport", context.group.transport_name()},
      {"device", context.device.str()},
      {"threads", at::get_num_threads()},
      {"mixed_precision", name_of(context.precision)},
      {"gradient_accumulation_steps", options.gradient_accumulation_plugin->num_steps},
      {"zero_stage", options.zero ? options.zero->stage : 0},
      {"torch", TORCH_VERSION},
      {"system", machine.system.name},
      {"kernel", machine.system.kernel},
      {"cpu", machine.cpu.model},
      {"cores", machine.cpu.cores},
      {"cores_allowed", machine.cpu.allowed},
      {"memory_bytes", machine.memory.bytes},
      {"gpus", machine.gpus}};
  return header;
}

}  // namespace

void StepRecording::start() {
  const AcceleratorOptions& options = context_.options;
  if (recorder_ || !options.record_steps.value_or(false)) {
    return;
  }
  const auto file = options.project_config.logging_dir / options.project_name /
                    tracking::step_file_name(context_.rank());
  recorder_ = std::make_shared<StepRecorder>(file, header_of(context_), context_.device);
  outer_ = comm::observe_waits(recorder_);
}

StepRecording::~StepRecording() {
  if (recorder_) {
    recorder_->flush();
    const auto observer = comm::observe_waits(std::move(outer_));
    if (observer != recorder_) {
      comm::observe_waits(observer);  // That of another Accelerator, or of another thread.
    }
  }
}

}  // namespace lockstep
