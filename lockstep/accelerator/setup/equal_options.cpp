// SPDX-License-Identifier: Apache-2.0
#include "lockstep/accelerator/setup/equal_options.h"

#include <string>
#include <vector>

#include <fmt/format.h>

#include "lockstep/accelerator/options/option_text.h"
#include "lockstep/accelerator/setup/mesh.h"
#include "lockstep/sync/rank_facts.h"
#include "lockstep/zero_options/zero_rows.h"

namespace lockstep::internal {
namespace {

/// Collects options as facts.
class Options {
 public:
  template <typename Value>
  void add(const std::string& name, const Value& value) {
    facts_.push_back(
        {fmt::format("the Accelerator's option {}", name),
         option_text(value),
         "construct it with the same options on every rank, and set the same environment "
         "variables"});
  }
  const std::vector<RankFact>& facts() const { return facts_; }

 private:
  std::vector<RankFact> facts_;
};

void add_data_parallel(const DataParallelOptions& options, Options& all) {
  all.add("data_parallel.cap_bytes", options.cap_bytes);
  all.add("data_parallel.first_cap_bytes", options.first_cap_bytes);
  all.add("data_parallel.broadcast_buffers", options.broadcast_buffers);
  const CommHookOptions& hook = options.comm_hook;
  all.add("data_parallel.comm_hook.type", name_of(hook.type));
  all.add("data_parallel.comm_hook.wrapper", name_of(hook.wrapper));
  all.add("data_parallel.comm_hook.use_error_feedback", hook.use_error_feedback);
  all.add("power_sgd.matrix_approximation_rank", hook.power_sgd.matrix_approximation_rank);
  all.add("power_sgd.start_iter", hook.power_sgd.start_iter);
  all.add("power_sgd.min_compression_rate", hook.power_sgd.min_compression_rate);
  all.add("power_sgd.warm_start", hook.power_sgd.warm_start);
  all.add("power_sgd.seed", hook.power_sgd.seed);
}

void add_loaders(const AcceleratorOptions& options, Options& all) {
  all.add("split_batches", options.split_batches);
  all.add("even_batches", options.even_batches);
  all.add("dispatch_batches", options.dispatch_batches);
  all.add("expect_equal_passes", options.expect_equal_passes);
  std::vector<std::string> rng_types;
  for (const data::RngType type : options.rng_types) {
    rng_types.push_back(fmt::format("{}", static_cast<int>(type)));
  }
  all.add("rng_types", rng_types);
}

void add_mesh(const RunContext& context, Options& all) {
  all.add("mesh", mesh_text(configured_mesh(context, /*shards=*/false)));
}

void add_saves(const AcceleratorOptions& options, Options& all) {
  const ProjectConfiguration& project = options.project_config;
  // Each process may see the project's folder under another path.
  const bool has_folder = !options.project_dir.empty();
  all.add("project_dir", has_folder ? "set" : "unset");
  all.add("project_config.checkpointing_steps", project.checkpointing_steps);
  all.add("project_config.save_on_each_node", project.save_on_each_node);
  all.add("save_when_preempted", has_folder && options.save_when_preempted);
}

}  // namespace

void expect_equal_options(const RunContext& context, bool needs_host_size) {
  if (!context.is_distributed()) {
    return;
  }
  const AcceleratorOptions& options = context.options;
  Options all;
  all.add("mixed_precision", name_of(context.precision));
  all.add("autocast.enabled", options.autocast.enabled);
  all.add("grad_scaler.enabled", options.grad_scaler.enabled);
  all.add("grad_scaler.init_scale", options.grad_scaler.init_scale);
  all.add("grad_scaler.growth_factor", options.grad_scaler.growth_factor);
  all.add("grad_scaler.backoff_factor", options.grad_scaler.backoff_factor);
  all.add("grad_scaler.growth_interval", options.grad_scaler.growth_interval);
  const GradientAccumulationPlugin& accumulation = *options.gradient_accumulation_plugin;
  all.add("gradient_accumulation_steps", accumulation.num_steps);
  all.add("gradient_accumulation_plugin.sync_with_dataloader", accumulation.sync_with_dataloader);
  all.add("gradient_accumulation_plugin.sync_each_batch", accumulation.sync_each_batch);
  all.add("gradient_accumulation_plugin.rescale_short_group", accumulation.rescale_short_group);
  all.add("non_finite", options.non_finite);
  all.add("debug", context.debug);
  add_loaders(options, all);
  add_saves(options, all);
  add_data_parallel(options.data_parallel, all);
  all.add("lower_precision_safe_modules.classes", options.lower_precision_safe_modules.classes);
  all.add("lower_precision_safe_modules.dtype", options.lower_precision_safe_modules.dtype);
  all.add("shared_parameters", options.shared_parameters);
  add_mesh(context, all);
  all.add("zero (whether it depends on the hosts)", needs_host_size);
  Group group = context.group;
  expect_equal_facts(group, all.facts(), "accelerator");
}

void expect_equal_zero(const RunContext& context) {
  if (!context.is_distributed()) {
    return;
  }
  Options all;
  const std::optional<ZeroPlugin>& zero = context.options.zero;
  if (zero) {
    visit_zero_options(*zero, [&](const char* name, const auto& value, const ZeroRule& rule) {
      if (rule.among_ranks == AmongRanks::kEqual) {
        all.add(fmt::format("zero.{}", name), value);
      }
    });
  } else {
    all.add("zero.stage", 0);
  }
  Group group = context.group;
  expect_equal_facts(group, all.facts(), "accelerator");
}

}  // namespace lockstep::internal
