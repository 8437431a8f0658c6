// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <string>

#include <fmt/format.h>

#include "cli/launch/launch_flags.h"
#include "lockstep/base/error.h"
#include "lockstep/base/text/split.h"

namespace lockstep::cli {
namespace {

/// Options refused for one reason, each with `=` after it if it takes a value.
struct Refusal {
  const char* names;
  const char* reason;
};

constexpr const char* kFsdp =
    "how a model is divided is said in the program, as FsdpPlugin, or by --zero-stage: 3 is "
    "FULL_SHARD, 2 is SHARD_GRAD_OP; leave it out";
constexpr const char* kMegatron = "Megatron-LM is another library; leave it out";
constexpr const char* kTpu = "there is no TPU backend: ranks run on CPUs and GPUs; leave it out";
constexpr const char* kDynamo =
    "torch.compile is for Python models and is called there; leave it out";
constexpr const char* kFp8 = "fp8 is not supported; try --mixed-precision bf16";
constexpr const char* kDeepSpeed =
    "what DeepSpeed's configuration says is said in the program, when it makes its Accelerator, or "
    "by --zero-stage and --deepspeed-config-file; leave it out";
constexpr const char* kParallelism =
    "ranks share out the data, and neither layers nor sequences; leave it out";
constexpr const char* kMany = "the number of ranks alone says that; leave it out";
constexpr const char* kNoImport =
    "nothing is imported: ranks are programs of their own; leave it out";
constexpr const char* kOutside = "it works from outside, too: taskset -c LIST lockstep launch ...";

constexpr std::array kRefusals = {
    // torchrun's
    Refusal{
        "--monitor-interval=", "ranks are not polled: their end is noticed at once; leave it out"},
    Refusal{"--virtual-local-rank", "every rank finds its true LOCAL_RANK; leave it out"},
    Refusal{"--start-method=", "ranks are programs that are executed, not forked; leave it out"},
    Refusal{"--run-path", "PROGRAM is run by its path as it is; leave it out"},
    Refusal{"--event-log-handler= --logs-specs=", kNoImport},
    Refusal{
        "--log-line-prefix-template=", "lines can carry [rank N] or nothing; try --rank-prefix"},
    Refusal{
        "--duplicate-stdout-filters= --duplicate-stderr-filters=",
        "output is not filtered by its text; try --log-dir, and grep in its files"},
    Refusal{"--local-addr=", "a host needs no name for itself; only --master-addr is told to all"},
    Refusal{"--print-completion=", "try lockstep completion bash, zsh or fish"},
    // Accelerate's
    Refusal{"--multi-gpu --same-network", kMany},
    Refusal{
        "--enable-cpu-affinity",
        "ranks are tied to cores, or memory nodes, by number; try --cpu-bind numa"},
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
    Refusal{"--use-megatron-lm", kMegatron},
    Refusal{
        "--megatron-lm-tp-degree= --megatron-lm-pp-degree= --megatron-lm-num-micro-batches= "
        "--megatron-lm-sequence-parallelism= --megatron-lm-recompute-activations= "
        "--megatron-lm-use-distributed-optimizer= --megatron-lm-gradient-clipping=",
        kMegatron},
    Refusal{"--use-parallelism-config", kParallelism},
    Refusal{
        "--parallelism-config-dp-replicate-size= --parallelism-config-dp-shard-size= "
        "--parallelism-config-tp-size= --parallelism-config-cp-size= "
        "--parallelism-config-cp-backend= --parallelism-config-cp-comm-strategy= "
        "--parallelism-config-sp-size= --parallelism-config-sp-backend= "
        "--parallelism-config-sp-seq-length= --parallelism-config-sp-seq-length-is-variable= "
        "--parallelism-config-sp-attn-implementation=",
        kParallelism},
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
    Refusal{"--bind-core-list=", kOutside},
    Refusal{"--no-local-rank", "no argument is added to PROGRAM's own; leave it out"},
    Refusal{"--force-multi --no-ssh", kMany},
    Refusal{"--autotuning=", "nothing is tuned by running the program; leave it out"},
    Refusal{
        "--venv-script=", "nothing is sourced; activate it before, or set its variables by --env"},
};

}  // namespace

void add_refused_flags(CLI::App& command) {
  for (const Refusal& refusal : kRefusals) {
    for (std::string name : split(refusal.names, ' ')) {
      const bool has_value = name.back() == '=';
      name.erase(name.size() - (has_value ? 1 : 0));
      const auto refuse = [name, reason = refusal.reason] {
        throw ConfigError(
            "lockstep launch", fmt::format("{} means nothing here: {}", name, reason));
      };
      CLI::Option* option = has_value
                                ? command.add_option_function<std::string>(
                                      name, [refuse](const std::string& /*value*/) { refuse(); })
                                : command.add_flag_callback(name, refuse);
      option->group("");
    }
  }
}

}  // namespace lockstep::cli
