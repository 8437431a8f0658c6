// SPDX-License-Identifier: Apache-2.0
#include "lockstep/ds_config/ds_config.h"

#include <algorithm>
#include <fstream>
#include <random>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "lockstep/base/test_folder.h"
#include "lockstep/ds_config/test_reading.h"

namespace lockstep::ds_config {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;
using testing::ThrowsMessage;

TEST(DsConfig, TheSeedsFileHasDeepSpeedsMeaning) {
  const Reading reading = reading_of(R"({
    "train_batch_size": 8,
    "gradient_accumulation_steps": 1,
    "optimizer": {"type": "Adam", "params": {"lr": 0.00015}},
    "fp16": {"enabled": true},
    "zero_optimization": true
  })");
  EXPECT_EQ(lines_of(reading.errors), "");
  const DsConfig& config = reading.config;
  EXPECT_EQ(config.batch.train_batch_size.value, 8);
  EXPECT_EQ(config.batch.train_micro_batch_size_per_gpu.value, 8);
  EXPECT_EQ(config.batch.gradient_accumulation_steps.value, 1);
  EXPECT_EQ(config.gradient_clipping.value, 1.0);
  EXPECT_EQ(config.zero.plugin.stage, 1);
  EXPECT_EQ(config.precision.value, FloatDtype::kFloat16);
  EXPECT_EQ(config.optimizer->name.value, "adamw");
  EXPECT_EQ(config.optimizer->parameters.number("lr"), 0.00015);
}

TEST(DsConfig, EachValueHasItsOrigin) {
  const DsConfig config = reading_with(R"("gradient_clipping": 0.5,
    "zero_optimization": {"stage": 3, "max_live_parameters": 9},
    "fp16": {"enabled": true, "loss_scale_window": "auto"})")
                              .config;
  EXPECT_EQ(described(config.gradient_clipping.origin), "ds.json:2:22");
  EXPECT_EQ(described(config.zero.origins.at("zero_optimization.stage")), "ds.json:3:36");
  EXPECT_EQ(
      described(config.zero.origins.at("zero_optimization.stage3_max_live_parameters")),
      "ds.json:3:62, as max_live_parameters");
  EXPECT_EQ(described(config.gradient_allreduce_op.origin), "default");
  EXPECT_EQ(described(config.fp16.loss_scale_window.origin), "default: \"auto\" at ds.json:4:52");
  EXPECT_EQ(config.fp16.loss_scale_window.value, 1000);
  EXPECT_EQ(described(config.precision.origin), "ds.json:4:25");
  EXPECT_EQ(
      described(config.batch.train_batch_size.origin),
      "derived: train_micro_batch_size_per_gpu * gradient_accumulation_steps * 1 rank");
}

TEST(DsConfig, ClipsToOneByDefaultAndSaysSo) {
  EXPECT_EQ(reading_with("").config.gradient_clipping.value, 1.0);
  EXPECT_THAT(notes_of(""), HasSubstr("clipped to a norm of 1.0, as in DeepSpeed 0.19"));
  EXPECT_EQ(reading_with(R"("gradient_clipping": 0)").config.gradient_clipping.value, 0);
  EXPECT_EQ(notes_of(R"("gradient_clipping": 0)"), "");
  const Reading by_auto = reading_with(R"("gradient_clipping": "auto")");
  EXPECT_EQ(by_auto.config.gradient_clipping.value, 1.0);
  EXPECT_EQ(
      described(by_auto.config.gradient_clipping.origin), "default: \"auto\" at ds.json:2:22");
}

TEST(DsConfig, UnknownKeysAreErrorsAtEveryLevel) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {R"("gradient_clipp1ng": 3)",
       "[ds.json:2:1] unknown key 'gradient_clipp1ng'; did you mean 'gradient_clipping'?\n"},
      {R"("fp16": {"enable": true})",
       "[ds.json:2:10] unknown key 'fp16.enable'; did you mean 'enabled'?\n"},
      {R"("zero_optimization": {"stagee": 1})", "did you mean 'stage'?"},
      {R"("zero_optimization": {"offload_optimizer": {"devise": "cpu"}})",
       "unknown key 'zero_optimization.offload_optimizer.devise'; did you mean 'device'?"},
      {R"("timers": {"throughput": {"enabledd": true}})", "did you mean 'enabled'?"},
      {R"("aio": {"block_sise": 1})", "did you mean 'block_size'?"},
      {R"("zero_optimization": {"leaf_module": {"clases": []}})", "did you mean 'classes'?"},
      {R"("checkpoint": {"parallel_write": {"pipeline_stages": false}})",
       "did you mean 'pipeline_stage'?"},
      {R"("optimizer": {"type": "Adam", "parms": {}})", "did you mean 'params'?"},
      {R"("optimizer": {"type": "Adam", "params": {"learning_rate": 1}})",
       "Adam has no parameter 'learning_rate'"},
      {R"("optimizer": {"type": "SGD", "params": {"momentun": 1}})", "did you mean 'momentum'?"},
      {R"("scheduler": {"type": "WarmupLR", "params": {"warmup_steps": 10}})",
       "WarmupLR has no parameter 'warmup_steps'"},
      {R"("seed": 1)", "unknown key 'seed'\n"}};
  for (const auto& [keys, what] : cases) {
    EXPECT_THAT(errors_of(keys), HasSubstr(what)) << keys;
  }
}

TEST(DsConfig, KeysWithDotsAreUnknownAndSetNothing) {
  const Reading both =
      reading_with(R"("zero_optimization": {"stage": 1}, "zero_optimization.stage": 3)");
  EXPECT_EQ(
      lines_of(both.errors),
      "[ds.json:2:36] unknown key 'zero_optimization.stage'; got a name with dots, expected nested "
      "sections; write \"zero_optimization\": {\"stage\": 3}\n");
  EXPECT_EQ(both.config.zero.plugin.stage, 1);
  const std::vector<std::pair<std::string, std::string>> cases = {
      {R"("fp16.enabled": true)", R"(write "fp16": {"enabled": true})"},
      {R"("zero_optimization.offload_param.device": "cpu")",
       R"(write "zero_optimization": {"offload_param": {"device": "cpu"}})"},
      {R"("zero_optimization": {"offload_param.device": "cpu"})",
       R"('zero_optimization.offload_param.device'; got a name with dots, expected nested )"
       R"(sections; write "offload_param": {"device": "cpu"})"},
      {R"("optimizer.params.lr": 1)", R"(write "optimizer": {"params": {"lr": 1}})"},
      {R"("bfloat16.enabled": true)", R"(write "bfloat16": {"enabled": true})"},
      {R"("a.b": 1)", "unknown key 'a.b'\n"}};
  for (const auto& [keys, what] : cases) {
    EXPECT_THAT(errors_of(keys), HasSubstr(what)) << keys;
  }
}

TEST(DsConfig, AMisspeltBatchSizeIsNamedBeforeTheMissingOne) {
  const Reading reading = reading_of(R"({"train_batch_sise": 4})");
  ASSERT_EQ(reading.errors.size(), 2U) << lines_of(reading.errors);
  EXPECT_EQ(
      reading.errors[0].what, "unknown key 'train_batch_sise'; did you mean 'train_batch_size'?");
  EXPECT_THAT(reading.errors[1].what, StartsWith("neither train_batch_size nor"));
}

TEST(DsConfig, ValuesOfAnotherTypeAreErrorsWithTheRemedy) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {R"("zero_optimization": {"stage": "4"})",
       "[ds.json:2:32] invalid value for zero_optimization.stage; got \"4\" in quotes, expected a "
       "whole number from 0 to 3\n"},
      {R"("zero_optimization": {"stage": "2.5"})", "got \"2.5\" in quotes"},
      {R"("fp16": {"hysteresis": "2"})", "got \"2\" in quotes, expected a whole number"},
      {R"("zero_optimization": {"stage": 4})", "got 4, expected a whole number from 0 to 3\n"},
      {R"("zero_optimization": {"reduce_bucket_size": 1.5})", "got 1.5, expected a whole number"},
      {R"("zero_optimization": {"reduce_bucket_size": 0})", "of at least 1\n"},
      {R"("zero_optimization": {"allgather_bucket_size": -1})", "of at least 0\n"},
      {R"("zero_optimization": 2)", "got 2, expected a section: keys and values in { }\n"},
      {R"("fp16": true)", "got true, expected a section"},
      {R"("fp16": {"enabled": "true"})",
       "got \"true\" in quotes, expected true or false; write true"},
      {R"("fp16": {"enabled": 1})", "got 1, expected true or false; write true\n"},
      {R"("fp16": {"loss_scale": true})", "got true, expected a number of at least 0\n"},
      {R"("fp16": {"loss_scale": -1})", "got -1, expected a number of at least 0\n"},
      {R"("fp16": {"loss_scale_window": 0})", "got 0, expected a whole number of at least 1\n"},
      {R"("fp16": {"enabled": null})", "got null, expected true or false\n"},
      {R"("gradient_clipping": [1])", "got a list, expected a number"},
      {R"("gradient_clipping": 1e999)", "invalid JSON"},
      {R"("gradient_predivide_factor": 0)", "expected a number above 0\n"},
      {R"("communication_data_type": "fp8")", "expected one of \"fp32\", \"fp16\", \"bf16\""},
      {R"("checkpoint": {"tag_validation": "WARNN"})", "did you mean 'WARN'?"},
      {R"("tensorboard": {"job_name": 7})", "got 7, expected text in quotes; write \"7\"\n"},
      {R"("comms_logger": {"prof_ops": [1]})", "expected a list of texts"},
      {R"("overlap_comm": true)", "unknown key"},
      {R"("zero_optimization": {"overlap_comm": "yes"})", "write true\n"},
      {R"("train_batch_size": 0)", "of at least 1\n"}};
  for (const auto& [keys, what] : cases) {
    std::string errors;
    try {
      errors = errors_of(keys);
    } catch (const ConfigError& error) {
      errors = error.what();
    }
    EXPECT_THAT(errors, HasSubstr(what)) << keys;
  }
}

TEST(DsConfig, IntegersMayHaveExponents) {
  const DsConfig config = reading_with(R"("zero_optimization": {"reduce_bucket_size": 5e8,
    "stage3_model_persistence_threshold": 9223372036854775807, "sub_group_size": 1.0e9},
    "steps_per_print": 2e3)")
                              .config;
  EXPECT_EQ(config.zero.plugin.reduce_bucket_size, 500'000'000);
  EXPECT_EQ(config.steps_per_print.value, 2000);
}

TEST(DsConfig, AllErrorsAreReportedAtOnceInTheFilesOrder) {
  const Reading reading = reading_of(
      R"({
    "train_batch_size": 7,
    "fp16": {"enabled": 1, "hysteresiss": 2},
    "zero_optimization": {"stage": 9},
    "elasticity": {},
    "optimizer": {"type": "Adamm"}
  })",
      2);
  ASSERT_EQ(reading.errors.size(), 6U) << lines_of(reading.errors);
  const std::vector<int> lines = {2, 3, 3, 4, 5, 6};
  for (size_t i = 0; i < lines.size(); ++i) {
    EXPECT_EQ(reading.errors[i].place.line, lines[i]) << reading.errors[i].what;
  }
}

TEST(DsConfig, RemovedDeepSpeedKeysAreRefusedByName) {
  for (const std::string key :
       {"amp",
        "compression_training",
        "curriculum_learning",
        "elasticity",
        "eigenvalue",
        "graph_harvesting",
        "nebula",
        "progressive_layer_drop",
        "quantize_training",
        "sparse_attention",
        "sparse_gradients"}) {
    EXPECT_THAT(
        errors_of("\"" + key + "\": {\"enabled\": false}"),
        AllOf(
            StartsWith("[ds.json:2:1] " + key + " is refused: removed in DeepSpeed 0.19 ("),
            HasSubstr("delete it\n")));
  }
  for (const std::string key :
       {"mics_shard_size", "mics_hierarchical_params_gather", "zeropp_loco_param"}) {
    EXPECT_THAT(
        errors_of("\"zero_optimization\": {\"" + key + "\": 1}"),
        HasSubstr("removed in DeepSpeed 0.19"));
  }
}

TEST(DsConfig, UnsupportedKeysAreRefusedWithTheRemedy) {
  for (const std::string key :
       {"autotuning", "pipeline", "hybrid_engine", "compile", "data_efficiency"}) {
    EXPECT_THAT(errors_of("\"" + key + "\": {}"), HasSubstr(key + " is refused: ")) << key;
  }
  EXPECT_THAT(
      errors_of(R"("comet": {"enabled": true})"),
      HasSubstr("is refused: Lockstep has no tracker for Comet; set wandb.enabled"));
}

TEST(DsConfig, AKeyThatStatesTheDefaultIsAccepted) {
  EXPECT_EQ(
      errors_of(R"("sequence_parallel_size": 1.0,
        "activation_checkpointing": {"cpu_checkpointing": false, "number_checkpoints": null},
        "comet": {"enabled": false}, "data_types": {"grad_accum_dtype": "FP32"},
        "flops_profiler": {"enabled": false, "profile_step": 2},
        "comms_logger": {"enabled": false, "prof_ops": ["all_reduce"]},
        "zero_optimization": {"load_from_fp32_weights": true})"),
      "");
}

TEST(DsConfig, AKeyWithoutEffectIsANoteThatSaysWhy) {
  EXPECT_THAT(
      notes_of(
          R"("zero_optimization": {"stage": 1, "overlap_comm": false}, "gradient_clipping": 1)"),
      "[ds.json:2:35] zero_optimization.overlap_comm is ignored: buckets are always "
      "reduced during backward\n");
  EXPECT_THAT(
      notes_of(R"("fp16": {"enabled": true, "loss_scale": 128, "hysteresis": 3})"),
      HasSubstr("fp16.hysteresis is ignored: loss_scale 128 is constant\n"));
  EXPECT_EQ(
      notes_of(R"("fp16": {"auto_cast": true}, "prescale_gradients": true,
    "gradient_predivide_factor": 2, "gradient_clipping": 1,
    "comms_logger": {"verbose": true})"),
      "[ds.json:2:10] fp16.auto_cast is ignored: operations that compute in float16 cast "
      "their inputs\n"
      "[ds.json:2:30] prescale_gradients is ignored: gradients are averaged in float32, "
      "which does not overflow\n"
      "[ds.json:3:5] gradient_predivide_factor is ignored: gradients are averaged in "
      "float32, which does not overflow\n");
}

TEST(DsConfig, AutoIsTheDefaultOrIsRefused) {
  EXPECT_EQ(
      errors_of(R"("train_batch_size": "auto", "gradient_accumulation_steps": "auto",
        "gradient_clipping": "auto", "zero_optimization": {"stage": 3,
        "reduce_bucket_size": "auto", "stage3_prefetch_bucket_size": "auto",
        "stage3_param_persistence_threshold": "auto"}, "fp16": {"enabled": false,
        "initial_scale_power": "auto"})"),
      "");
  for (const std::string keys :
       {R"("fp16": {"enabled": "auto"})",
        R"("bf16": {"enabled": "auto"})",
        R"("zero_optimization": {"stage": "auto"})",
        R"("optimizer": {"type": "auto"})",
        R"("optimizer": {"type": "AdamW", "params": {"lr": "auto"}})",
        R"("scheduler": {"type": "WarmupDecayLR", "params": {"total_num_steps": "auto"}})"}) {
    EXPECT_THAT(
        errors_of(keys),
        AllOf(HasSubstr(" is \"auto\", which only"), HasSubstr("by a value; write ")))
        << keys;
  }
}

TEST(DsConfig, ARefusedAutoHasARemedy) {
  EXPECT_EQ(
      errors_of(R"("fp16": {"enabled": "auto"})"),
      "[ds.json:2:21] fp16.enabled is \"auto\", which only Accelerate and the Trainer replace by a "
      "value; write true or false\n");
  EXPECT_THAT(
      errors_of(R"("optimizer": {"type": "AdamW", "params": {"betas": "auto"}})"),
      HasSubstr("write a list of two numbers from 0 to 1\n"));
}

TEST(DsConfig, PrecisionIsResolvedAndTwoAreRefused) {
  EXPECT_EQ(reading_with("").config.precision.value, FloatDtype::kFloat32);
  EXPECT_EQ(
      reading_with(R"("bfloat16": {"enabled": true})").config.precision.value,
      FloatDtype::kBfloat16);
  EXPECT_EQ(
      reading_with(R"("torch_autocast": {"enabled": true, "dtype": "bfloat16"})")
          .config.precision.value,
      FloatDtype::kBfloat16);
  EXPECT_THAT(
      errors_of(R"("fp16": {"enabled": true}, "bf16": {"enabled": true})"),
      HasSubstr("two precisions; got fp16.enabled and bf16.enabled"));
  const auto both = reading_with(
      R"("bf16": {"enabled": true}, "torch_autocast": {"enabled": true, "dtype": "bfloat16"})");
  EXPECT_EQ(lines_of(both.errors), "");
  EXPECT_EQ(both.config.precision.value, FloatDtype::kBfloat16);
  EXPECT_THAT(
      errors_of(
          R"("bf16": {"enabled": true}, "torch_autocast": {"enabled": true, "dtype": "float16"})"),
      HasSubstr("two precisions; got bf16.enabled and torch_autocast.enabled"));
  const auto autocast_of = [](const std::string& word) {
    return reading_with(R"("torch_autocast": {"enabled": true, "dtype": ")" + word + "\"}");
  };
  EXPECT_EQ(lines_of(autocast_of("torch.bfloat16").errors), "");
  EXPECT_EQ(autocast_of("torch.bfloat16").config.precision.value, FloatDtype::kBfloat16);
  EXPECT_EQ(autocast_of("torch.float16").config.precision.value, FloatDtype::kFloat16);
  EXPECT_THAT(lines_of(autocast_of("torch.float32").errors), HasSubstr("expected one of"));
  EXPECT_THAT(
      errors_of(R"("torch_autocast": {"enabled": true})"),
      HasSubstr("torch_autocast has no dtype"));
}

TEST(DsConfig, KeysThatGoAgainstEachOtherAreErrors) {
  EXPECT_THAT(
      errors_of(R"("gradient_allreduce_op": "sum", "zero_optimization": {"stage": 3})"),
      HasSubstr("gradient_allreduce_op sum does not work in stage 3"));
}

TEST(DsConfig, MessagesStayShortForAnyFile) {
  const std::string large(5000, 'x');
  for (const std::string& keys :
       {"\"" + large + "\": 1",
        "\"fp16\": {\"" + large + "\": 1, \"enabled\": \"" + large + "\"}",
        "\"optimizer\": {\"type\": \"" + large + "\"}",
        "\"optimizer\": {\"type\": \"Adam\", \"params\": {\"" + large + "\": 1}}",
        "\"gradient_clipping\": \"" + std::string(5000, '1') + "\"",
        "\"log_level\": 1." + std::string(5000, '0')}) {
    const Reading reading = reading_with(keys);
    EXPECT_FALSE(reading.errors.empty());
    for (const Diagnostic& error : reading.errors) {
      EXPECT_LT(error.what.size(), 500U) << error.what;
    }
  }
}

/// `text` with a few random edits.
std::string edited(std::string text, std::mt19937& random) {
  const std::vector<std::string> pieces = {
      "{",
      "}",
      "[",
      "]",
      ":",
      ",",
      "\"",
      "null",
      "true",
      "\"auto\"",
      "-1",
      "1e999",
      "0.5",
      "//",
      "#",
      "/*",
      "{}"};
  const size_t edits = 1 + random() % 4;
  for (size_t i = 0; i < edits; ++i) {
    const size_t at = random() % (text.size() + 1);
    const size_t size = std::min<size_t>(text.size() - at, random() % 12);
    text.replace(at, size, pieces[random() % pieces.size()]);
  }
  return text;
}

TEST(DsConfig, RandomEditsAreReadOrRefusedWithPlaces) {
  const std::string seed = R"({"train_batch_size": 8, "zero_optimization": {"stage": 3,
    "offload_param": {"device": "none"}, "cpu_offload": false, "leaf_module": {"names": ["a"]}},
    "optimizer": {"type": "Adam", "params": {"lr": 1e-3, "betas": [0.9, 0.99]}},
    "scheduler": {"type": "WarmupDecayLR", "params": {"total_num_steps": 2000,
    "warmup_max_lr": "auto", "warmup_min_lr": [0]}}, "bfloat16": {"enabled": true},
    "fp16": {"enabled": false, "loss_scale": 0}, "comms_logger": {"prof_ops": ["all_reduce"]}})";
  std::mt19937 random(20'261'123);
  size_t right = 0;
  for (int i = 0; i < 20'000; ++i) {
    const std::string text = edited(seed, random);
    try {
      const Reading reading = reading_of(text, 2);
      right += reading.errors.empty() ? 1 : 0;
      for (const Diagnostic& error : reading.errors) {
        EXPECT_THAT(error.where, testing::MatchesRegex("ds.json:[1-9]:[1-9][0-9]*")) << text;
      }
    } catch (const ConfigError& error) {
      EXPECT_THAT(error.what(), StartsWith("[ds.json:")) << text;
    }
  }
  EXPECT_GT(right, 20U);
}

TEST(DsConfig, AFileThatIsNotAMapIsRefused) {
  EXPECT_THAT(lines_of(reading_of("[]").errors), HasSubstr("invalid configuration; got a list"));
  EXPECT_THAT(lines_of(reading_of("null").errors), HasSubstr("got null"));
}

TEST(DsConfig, CommentsTrailingCommasAndTwiceGivenKeys) {
  EXPECT_EQ(errors_of("# of mine\n\"gradient_clipping\": 1, // here\n"), "");
  EXPECT_THAT(
      [] { reading_of("{\"fp16\": {\"enabled\": true,\n\"enabled\": true}}"); },
      ThrowsMessage<ConfigError>(StartsWith("[ds.json:2:1] key 'enabled' is given twice")));
}

TEST(ResolveDsConfig, ThrowsOneErrorWithAll) {
  const TestFolder folder;
  const std::string path = (folder / "ds_config.json").string();
  std::ofstream(path) << "{\"train_batch_size\": 8, // eight\n \"ampp\": 1,\n \"amp\": 1}";
  const config::Document document = read_ds_document(path);
  EXPECT_THAT(
      [&] { resolve_ds_config(document, 1); },
      ThrowsMessage<ConfigError>(AllOf(
          StartsWith(
              "[" + path + ":2:2] unknown key 'ampp'; did you mean 'amp'?\n[" + path + ":3:2]"),
          HasSubstr("removed in DeepSpeed"))));
  std::ofstream(path) << "{\"train_batch_size\": 8}";
  EXPECT_EQ(
      resolve_ds_config(read_ds_document(path), 4).batch.train_micro_batch_size_per_gpu.value, 2);
}

}  // namespace
}  // namespace lockstep::ds_config
