// SPDX-License-Identifier: Apache-2.0
#include "lockstep/engine/engine_core.h"

#include <algorithm>

#include <fmt/format.h>

#include <ATen/ops/add.h>
#include <ATen/ops/div.h>
#include <ATen/ops/mul.h>
#include <c10/core/GradMode.h>

#include "lockstep/base/error.h"
#include "lockstep/base/log.h"
#include "lockstep/base/world.h"
#include "lockstep/engine/make_optimizer.h"
#include "lockstep/engine/offload_options.h"
#include "lockstep/optim/flat_optimizer.h"

namespace lockstep {
namespace {

config::Document document_of(const InitializeOptions& options) {
  if (options.config.empty() == options.config_json.empty()) {
    throw ConfigError(
        "initialize",
        options.config.empty() ? "needs a configuration; give `config`, a file, or `config_json`"
                               : "got both `config` and `config_json`; give one");
  }
  if (!options.config.empty()) {
    return ds_config::read_ds_document(options.config);
  }
  return config::parse_document("config_json", options.config_json, config::Format::kCommentedJson);
}

LogLevel log_level_of(const std::string& word) {
  return word == "debug"     ? LogLevel::kDebug
         : word == "warning" ? LogLevel::kWarning
         : word == "error"   ? LogLevel::kError
                             : LogLevel::kInfo;
}

}  // namespace

EngineCore::EngineCore(InitializeOptions options) : given_(std::move(options)) {
  const int world = given_.connected ? given_.connected->world.size
                                     : world_from_environment(Environment::process()).size;
  config_ = ds_config::resolve_ds_config(document_of(given_), world);
  gradient_accumulation_steps_ = config_.batch.gradient_accumulation_steps.value;
  micro_batch_size_ = config_.batch.train_micro_batch_size_per_gpu.value;
  check_overlap(given_.accelerator);
  AcceleratorOptions ours = accelerator_options(given_.accelerator);
  accelerator_ = given_.connected
                     ? std::make_unique<Accelerator>(
                           std::move(ours), given_.connected->world, given_.connected->group)
                     : std::make_unique<Accelerator>(std::move(ours));
  if (config_.log_level.value) {
    LogOptions log = LogOptions::from_environment();
    log.level = log_level_of(*config_.log_level.value);
    set_log_options(log);
  }
  report_ = std::make_unique<StepReport>(config_, accelerator_->is_main_process());
  register_hooks();
}

void EngineCore::check_overlap(const AcceleratorOptions& given) const {
  const AcceleratorOptions unset;
  const auto refuse = [](const char* option, const char* key) {
    throw ConfigError(
        "initialize",
        fmt::format(
            "AcceleratorOptions::{} is for the configuration file to say, as {}; leave it out",
            option,
            key));
  };
  if (given.mixed_precision) {
    refuse("mixed_precision", "fp16.enabled or bf16.enabled");
  }
  if (given.zero) {
    refuse("zero", "zero_optimization");
  }
  if (given.gradient_accumulation_steps != unset.gradient_accumulation_steps ||
      given.gradient_accumulation_plugin) {
    refuse("gradient_accumulation_steps", "gradient_accumulation_steps");
  }
  if (given.non_finite != unset.non_finite) {
    refuse("non_finite", "bf16.check_grad_overflow");
  }
}

AcceleratorOptions EngineCore::accelerator_options(AcceleratorOptions given) {
  AcceleratorOptions options = std::move(given);
  set_precision(options);
  set_zero(options);
  // An environment made for Accelerate's launcher must not count micro-steps a second time.
  options.gradient_accumulation_plugin =
      GradientAccumulationPlugin{.num_steps = 1, .sync_with_dataloader = false};
  const auto& wire = config_.communication_data_type;
  if (wire.value && *wire.value != ds_config::Dtype::kFloat32) {
    if (stage() > 0) {
      throw ConfigError(
          "initialize",
          fmt::format(
              "communication_data_type {} ({}) goes with stage 0 only; got stage {}: delete one",
              ds_config::word_of(*wire.value),
              wire.origin.text,
              stage()));
    }
    options.data_parallel.comm_hook.type =
        *wire.value == ds_config::Dtype::kFloat16 ? CommHookType::kFp16 : CommHookType::kBf16;
  }
  return options;
}

void EngineCore::set_precision(AcceleratorOptions& options) {
  switch (config_.precision.value) {
    case ds_config::Dtype::kFloat32:
      options.mixed_precision = Precision::kNo;
      break;
    case ds_config::Dtype::kBfloat16:
      options.mixed_precision = Precision::kBF16;
      if (config_.bf16.enabled.value && config_.bf16.check_grad_overflow.value) {
        options.non_finite = NonFinitePolicy::kSkip;
      }
      break;
    case ds_config::Dtype::kFloat16: {
      options.mixed_precision = Precision::kFP16;
      const ds_config::Fp16Section& fp16 = config_.fp16;
      if (fp16.enabled.value && fp16.loss_scale.value > 0) {
        const double fixed = fp16.loss_scale.value;
        options.grad_scaler.init_scale = fixed;
        options.loss_scale_rule = [fixed](bool) { return fixed; };
        break;
      }
      loss_scale_ = std::make_shared<DynamicLossScale>(DynamicLossScaleOptions{
          .init_scale = static_cast<double>(int64_t{1} << fp16.initial_scale_power.value),
          .loss_scale_window = fp16.loss_scale_window.value,
          .hysteresis = fp16.hysteresis.value,
          .consecutive_hysteresis = fp16.consecutive_hysteresis.value,
          .min_loss_scale = static_cast<double>(fp16.min_loss_scale.value),
          .plain = stage() == 0});
      options.grad_scaler.init_scale = loss_scale_->scale();
      options.loss_scale_rule = [scale = loss_scale_](bool overflowed) {
        return scale->update(overflowed);
      };
      break;
    }
  }
}

void EngineCore::set_zero(AcceleratorOptions& options) const {
  const ds_config::ZeroSection& zero = config_.zero;
  if (zero.stage.value == 0) {
    return;
  }
  constexpr int64_t kElementBytes = 4;  // Parameters are float32, whatever is computed in.
  ZeroPlugin plugin{.stage = static_cast<int>(zero.stage.value)};
  if (zero.reduce_bucket_size.value) {
    plugin.bucket_cap_bytes = *zero.reduce_bucket_size.value * kElementBytes;
  }
  plugin.stage3_max_live_parameters = zero.max_live_parameters.value;
  plugin.stage3_param_persistence_threshold = zero.param_persistence_threshold.value;
  plugin.stage3_prefetch = zero.prefetch_bucket_size.value > 0;
  set_offloads(zero, plugin);
  options.zero = plugin;
}

std::shared_ptr<torch::optim::Optimizer> EngineCore::optimizer_of(
    const std::vector<at::Tensor>& parameters) {
  if (given_.optimizer) {
    return given_.optimizer;
  }
  if (!config_.optimizer) {
    return nullptr;
  }
  std::vector<at::Tensor> trained =
      given_.model_parameters.empty() ? parameters : given_.model_parameters;
  std::erase_if(trained, [](const at::Tensor& parameter) { return !parameter.requires_grad(); });
  return make_optimizer(*config_.optimizer, trained);
}

void EngineCore::start(Optimizer optimizer, std::function<std::vector<at::Tensor>()> parameters) {
  has_optimizer_ = optimizer != Optimizer();
  optimizer_ = std::move(optimizer);
  parameters_ = std::move(parameters);
  given_.optimizer.reset();
  given_.model_parameters.clear();
  has_scheduler_ = given_.lr_scheduler || config_.scheduler;
  if (has_scheduler_ && !has_optimizer_) {
    throw ConfigError(
        "initialize", "got a scheduler, and no optimizer for it; add one to either of them");
  }
  if (given_.lr_scheduler) {
    scheduler_ = std::visit(
        [&](const auto& schedule) { return accelerator_->prepare(schedule); },
        *given_.lr_scheduler);
  } else if (config_.scheduler) {
    scheduler_ = accelerator_->prepare(*config_.scheduler->schedule);
  }
}

data::LoaderOptions EngineCore::loader_options() const {
  return {
      .batch_size = micro_batch_size_,
      .shuffle = true,
      .drop_last = config_.dataloader_drop_last.value};
}

bool EngineCore::is_gradient_accumulation_boundary() const {
  if (boundary_) {
    return *boundary_;
  }
  return !config_.managed_gradient_accumulation.value ||
         (micro_steps_ + 1) % gradient_accumulation_steps_ == 0;
}

GradientScope EngineCore::no_sync() {
  if (stage() >= 2) {
    throw ConfigError(
        "no_sync",
        fmt::format(
            "goes with stages 0 and 1; got stage {}, in which gradients are divided after every "
            "backward: nothing is gained by waiting",
            stage()));
  }
  if (within_no_sync_) {
    throw ConfigError("no_sync", "is under way already; leave it first");
  }
  within_no_sync_ = true;
  return GradientScope([this] { within_no_sync_ = false; });
}

at::Tensor EngineCore::backward(const at::Tensor& loss, bool scale_wrt_gas) {
  if (!has_optimizer_) {
    throw ConfigError(
        "backward", "there is no optimizer; add one to the configuration, or give initialize one");
  }
  if (!loss.defined() || loss.numel() != 1) {
    throw ConfigError(
        "backward",
        fmt::format(
            "needs a loss of one number; got {}",
            loss.defined() ? fmt::format("{}", loss.numel()) : "none"));
  }
  const auto began = StepTimers::Clock::now();
  const at::Tensor divided = scale_wrt_gas && gradient_accumulation_steps_ > 1
                                 ? at::div(loss, static_cast<double>(gradient_accumulation_steps_))
                                 : loss;
  const bool sum = config_.gradient_allreduce_op.value == ds_config::AllreduceOp::kSum;
  const at::Tensor rooted =
      sum ? at::mul(divided, static_cast<double>(accelerator_->num_processes())) : divided;
  // Stages 2 and 3 divide gradients after each backward, so that none is whole for long.
  const bool waits = within_no_sync_ || (stage() < 2 && !is_gradient_accumulation_boundary());
  if (waits) {
    const GradientScope held = accelerator_->no_sync();
    accelerator_->backward(rooted);
  } else {
    accelerator_->backward(rooted);
  }
  at::Tensor result = divided.detach();
  if (report_->wants_loss()) {
    const c10::AutoGradMode no_grad(false);
    loss_sum_ = loss_sum_.defined() ? at::add(loss_sum_, result) : result;
  }
  StepTimers::add(timers_.backward_ms, began);
  return result;
}

void EngineCore::step() {
  if (within_no_sync_) {
    throw ConfigError("step", "within no_sync(), whose gradients are not averaged; leave it first");
  }
  if (!has_optimizer_) {
    throw ConfigError("step", "there is no optimizer; add one to the configuration");
  }
  const auto began = StepTimers::Clock::now();
  const bool boundary = is_gradient_accumulation_boundary();
  if (boundary) {
    if (config_.gradient_clipping.value > 0) {
      norm_ = accelerator_->clip_grad_norm_(parameters_(), config_.gradient_clipping.value);
    }
    optimizer_.step();
    step_applied_ = !optimizer_.step_was_skipped();
    if (has_scheduler_) {
      scheduler_.step();  // It stands still itself where the update was left out.
    }
    optimizer_.zero_grad();
    ++global_steps_;
    global_samples_ += train_batch_size();
    skipped_steps_ += step_applied_ ? 0 : 1;
  } else {
    step_applied_ = false;
  }
  ++micro_steps_;
  StepTimers::add(timers_.step_ms, began);
  if (!boundary) {
    return;
  }
  StepFacts facts{
      .global_steps = global_steps_,
      .global_samples = global_samples_,
      .skipped_steps = skipped_steps_,
      .loss = std::nullopt,
      .lr = get_lr(),
      .mom = get_mom(),
      .loss_scale = std::nullopt,
      .timers = timers_};
  if (report_->wants_loss() && loss_sum_.defined()) {
    facts.loss = loss_sum_.item<double>();
  }
  if (config_.precision.value == ds_config::Dtype::kFloat16) {
    facts.loss_scale = loss_scale();
  }
  report_->tell(facts);
  loss_sum_.reset();
  timers_ = {};
}

int64_t EngineCore::train_batch_size() const {
  return micro_batch_size_ * gradient_accumulation_steps_ * accelerator_->num_processes();
}

void EngineCore::set_train_batch_size(int64_t size) {
  const int64_t a_micro_step = micro_batch_size_ * accelerator_->num_processes();
  if (size < 1 || size % a_micro_step != 0) {
    throw ConfigError(
        "set_train_batch_size",
        fmt::format(
            "only the micro-steps an update can change; got {}, expected a multiple of {} samples "
            "({} ranks of {})",
            size,
            a_micro_step,
            accelerator_->num_processes(),
            micro_batch_size_));
  }
  gradient_accumulation_steps_ = size / a_micro_step;
}

void EngineCore::set_train_micro_batch_size(int64_t size) {
  if (size < 1) {
    throw ConfigError(
        "set_train_micro_batch_size", fmt::format("got {}, expected at least 1", size));
  }
  micro_batch_size_ = size;
}

std::optional<double> EngineCore::get_global_grad_norm() const {
  return norm_.defined() ? std::optional(norm_.item<double>()) : std::nullopt;
}

std::vector<double> EngineCore::get_lr() const {
  return has_optimizer_ ? optimizer_.learning_rates() : std::vector<double>();
}

/// SGD's momentum, or the betas of Adam and its like, of each group.
std::vector<double> EngineCore::get_mom() const {
  std::vector<double> all;
  if (!has_optimizer_) {
    return all;
  }
  auto* flat = dynamic_cast<optim::FlatOptimizer*>(&optimizer_.inner());
  if (flat == nullptr) {
    return all;
  }
  for (auto& group : flat->param_groups()) {
    for (const optim::NamedOption& option : flat->named_options(group.options())) {
      const std::string name = option.name;
      if (const auto* momentum = std::get_if<double*>(&option.value);
          momentum && name == "momentum") {
        all.push_back(**momentum);
      }
      if (const auto* pair = std::get_if<std::pair<double, double>*>(&option.value);
          pair && name == "betas") {
        all.push_back((*pair)->first);
      }
    }
  }
  return all;
}

double EngineCore::loss_scale() const {
  if (loss_scale_) {
    accelerator_->scaler();  // What the last update did to it counts from now on.
    return loss_scale_->scale();
  }
  GradScaler* scaler = accelerator_->scaler();
  return scaler == nullptr ? 1 : scaler->get_scale();
}

}  // namespace lockstep
