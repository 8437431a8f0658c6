// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <string>

#include <fmt/format.h>

#include "cli/launch/launch_flags.h"
#include "cli/launch/parallelism_words.h"
#include "lockstep/base/error.h"
#include "lockstep/base/text/split.h"

namespace lockstep::cli {
namespace {

/// Options that are refused for one reason. A name ends with `=` if the option takes a value.
struct Refusal {
  const char* names;
  const char* reason;
};

constexpr const char* kFsdp =
    "the program configures sharding with FsdpPlugin, or --zero-stage: 3 is FULL_SHARD, 2 is "
    "SHARD_GRAD_OP; omit it";
constexpr const char* kTpu = "Lockstep has no TPU backend; omit it";
constexpr const char* kDynamo = "torch.compile is called in Python programs; omit it";
constexpr const char* kFp8 = "fp8 is not supported; try --mixed-precision bf16";
constexpr const char* kDeepSpeed =
    "the program configures this when it constructs its Accelerator, or use --zero-stage and "
    "--deepspeed-config-file; omit it";
constexpr const char* kByRankCount =
    "Lockstep derives this from the number of ranks and hosts; omit it";
constexpr const char* kNoImport = "ranks are separate programs, and nothing is imported; omit it";
constexpr const char* kUseTaskset =
    "Lockstep has no such option; try taskset -c LIST lockstep launch ...";

constexpr std::array kRefusals = {
    // torchrun's
    Refusal{
        "--monitor-interval=", "the end of a rank is noticed at once, without polling; omit it"},
    Refusal{"--virtual-local-rank", "every rank has its real LOCAL_RANK; omit it"},
    Refusal{"--start-method=", "ranks are executed, not forked; omit it"},
    Refusal{"--run-path", "PROGRAM is always run by its path; omit it"},
    Refusal{"--event-log-handler= --logs-specs=", kNoImport},
    Refusal{
        "--log-line-prefix-template=", "the only prefix of a line is [rank N]; try --rank-prefix"},
    Refusal{
        "--duplicate-stdout-filters= --duplicate-stderr-filters=",
        "output is not filtered; try --log-dir, and grep in its files"},
    Refusal{
        "--local-addr=", "a host needs no address for itself; only --master-addr is sent to all"},
    Refusal{"--print-completion=", "try lockstep completion bash, zsh or fish"},
    // Accelerate's
    Refusal{"--multi-gpu --same-network", kByRankCount},
    Refusal{
        "--enable-cpu-affinity",
        "ranks are bound to cores, or memory nodes, by their number; try --cpu-bind numa"},
    Refusal{"--main-training-function=", kNoImport},
    Refusal{"--downcast-bf16= --vm= --aws-access-key-id= --aws-secret-access-key=", kTpu},
    Refusal{"--tpu --tpu-cluster --no-tpu-cluster --tpu-use-sudo", kTpu},
    Refusal{
        "--dynamo-backend= --dynamo-mode= --dynamo-use-fullgraph --dynamo-use-dynamic "
        "--dynamo-use-regional-compilation",
        kDynamo},
    Refusal{"--use-fsdp", kFsdp},
    Refusal{
        "--fsdp-version= --fsdp-offload-params= --fsdp-min-num-params= --fsdp-sharding-strategy= "
        "--fsdp-reshard-after-forward= --fsdp-auto-wrap-policy= "
        "--fsdp-transformer-layer-cls-to-wrap= --fsdp-backward-prefetch= --fsdp-state-dict-type= "
        "--fsdp-forward-prefetch= --fsdp-use-orig-params= --fsdp-cpu-ram-efficient-loading= "
        "--fsdp-sync-module-states= --fsdp-activation-checkpointing= "
        "--fsdp-activation-checkpointing-offload=",
        kFsdp},
    Refusal{
        "--use-megatron-lm",
        "its degrees work without it, and the program clips gradients, by 1.0 if it is to train as "
        "Megatron-LM does; omit it"},
    Refusal{
        "--fp8-backend= --fp8-format= --fp8-margin= --fp8-interval= --fp8-amax-history-len= "
        "--fp8-amax-compute-algo= --fp8-opt-level= --fp8-override-linear-precision= "
        "--fp8-use-autocast-during-eval= --fp8-enable-fsdp-float8-all-gather= "
        "--fp8-pad-inner-dim=",
        kFp8},
    Refusal{"--use-deepspeed", kDeepSpeed},
    Refusal{
        "--zero3-init-flag= --zero3-save-16bit-model= --offload-optimizer-device= "
        "--offload-param-device= --offload-optimizer-nvme-path= --offload-param-nvme-path= "
        "--gradient-clipping= --deepspeed-moe-layer-cls-names=",
        kDeepSpeed},
    Refusal{
        "--mpirun-hostfile=",
        "mpirun reads it itself: mpirun --hostfile FILE -n N PROGRAM; or try --hostfile FILE"},
    // DeepSpeed's
    Refusal{"--enable-each-rank-log=", "try --log-dir DIR --redirects 3"},
    Refusal{"--bind-core-list=", kUseTaskset},
    Refusal{"--no-local-rank", "PROGRAM gets no additional argument; omit it"},
    Refusal{"--force-multi --no-ssh", kByRankCount},
    Refusal{"--autotuning=", "Lockstep has no autotuning; omit it"},
    Refusal{
        "--venv-script=",
        "no script is sourced; activate the environment before, or set its variables with --env"},
};

}  // namespace

void add_refused_flags(CLI::App& command) {
  for (const Refusal& refusal : kRefusals) {
    for (std::string name : split(refusal.names, ' ')) {
      const bool has_value = name.back() == '=';
      name.erase(name.size() - (has_value ? 1 : 0));
      const auto refuse = [name, reason = refusal.reason] {
        throw ConfigError("lockstep launch", fmt::format("{} has no effect: {}", name, reason));
      };
      CLI::Option* option = has_value
                                ? command.add_option_function<std::string>(
                                      name, [refuse](const std::string& /*value*/) { refuse(); })
                                : command.add_flag_callback(name, refuse);
      option->group("");
    }
  }
  // replace_parallelism_options() replaces them.
  for (const std::string& name : parallelism_option_flags()) {
    command.add_option_function<std::string>(name, [](const std::string& /*value*/) {})->group("");
  }
  command.add_flag_callback("--use-parallelism-config", [] {})->group("");
}

}  // namespace lockstep::cli
