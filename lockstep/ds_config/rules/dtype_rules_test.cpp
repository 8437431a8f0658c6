// SPDX-License-Identifier: Apache-2.0
// Which dtypes go together. Where DeepSpeed 0.19.8 asserts, so does this.
#include <optional>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/ds_config/test_reading.h"

namespace lockstep::ds_config {
namespace {

using testing::HasSubstr;

std::string bf16(const std::string& more) {
  return R"("bf16": {"enabled": true}, )" + more;
}

std::string adam() {
  return R"("optimizer": {"type": "Adam", "params": {"lr": 0.1}}, )";
}

std::string on_host() {
  return R"("zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}}, )";
}

TEST(DtypeRules, Float32ParametersAreNotedUnlessTheFileGivesTheirDtype) {
  const auto noted = HasSubstr("parameters stay float32");
  for (const std::string word : {"fp16", "bf16"}) {
    const std::string on = "\"" + word + "\": {\"enabled\": true}";
    EXPECT_THAT(notes_of(on), HasSubstr("write data_types.param_dtype " + word + "; fp32 keeps"));
    for (const std::string& dtype : {word, std::string("fp32")}) {
      EXPECT_THAT(
          notes_of(on + ", \"data_types\": {\"param_dtype\": \"" + dtype + "\"}"), Not(noted));
    }
  }
  EXPECT_THAT(notes_of(R"("bf16": {"enabled": false})"), Not(noted));
  EXPECT_THAT(notes_of(R"("torch_autocast": {"enabled": true, "dtype": "bf16"})"), Not(noted));
}

TEST(DtypeRules, A16BitParamDtypeIsTheComputeDtype) {
  const Reading reading =
      reading_with(bf16(R"("data_types": {"param_dtype": "BF16", "buffer_dtype": "fp16",
              "grad_accum_dtype": "fp32", "keep_in_fp32_modules": ["router.*bias", "inv_freq"]})"));
  EXPECT_EQ(lines_of(reading.errors), "");
  const DataTypesSection& types = reading.config.data_types;
  EXPECT_EQ(types.param_dtype.value, FloatDtype::kBfloat16);
  EXPECT_EQ(types.buffer_dtype.value, FloatDtype::kFloat16);
  EXPECT_EQ(types.grad_accum_dtype.value, FloatDtype::kFloat32);
  EXPECT_THAT(types.keep_in_fp32_modules.value, testing::ElementsAre("router.*bias", "inv_freq"));
  EXPECT_EQ(errors_of(bf16(R"("data_types": {"param_dtype": "fp32"})")), "");
  EXPECT_EQ(errors_of(R"("data_types": {"param_dtype": null, "grad_accum_dtype": "fp32"})"), "");
  EXPECT_THAT(
      errors_of(bf16(R"("data_types": {"param_dtype": "fp16"})")),
      HasSubstr("param_dtype is fp16, but bf16.enabled is set; set fp16.enabled, or delete"));
  EXPECT_THAT(
      errors_of(R"("data_types": {"param_dtype": "bf16"})"),
      HasSubstr("param_dtype is bf16, but neither fp16 nor bf16 is enabled; set bf16.enabled"));
  EXPECT_THAT(
      errors_of(R"("torch_autocast": {"enabled": true, "dtype": "bf16"},
        "data_types": {"param_dtype": "bf16", "buffer_dtype": "bf16"})"),
      testing::AllOf(
          HasSubstr("data_types.param_dtype is bf16, but neither fp16 nor bf16 is enabled"),
          HasSubstr("data_types.buffer_dtype bf16 needs fp16.enabled or bf16.enabled")));
  EXPECT_THAT(
      errors_of(bf16(R"("data_types": {"param_dtype": "float8"})")), HasSubstr("expected one of"));
}

TEST(DtypeRules, LambNeedsADynamicScaleWithFp16) {
  const auto keys = [](const std::string& optimizer, const std::string& fp16) {
    return R"("optimizer": {"type": ")" + optimizer + "\"},\n\"fp16\": {" + fp16 + "}";
  };
  const std::string fixed = R"("enabled": true, "loss_scale": 128)";
  EXPECT_THAT(
      errors_of(keys("Lamb", fixed)),
      HasSubstr("[ds.json:3:41] Lamb needs a dynamic loss scale with fp16; got loss_scale 128"));
  EXPECT_EQ(errors_of(keys("Lamb", R"("enabled": true, "loss_scale": 0)")), "");
  EXPECT_EQ(errors_of(keys("Lamb", R"("enabled": false, "loss_scale": 128)")), "");
  EXPECT_EQ(errors_of(keys("Adam", fixed)), "");
}

TEST(DtypeRules, NamesToKeepInFp32AreTextAndStars) {
  EXPECT_EQ(
      reading_with(R"("data_types": {"keep_in_fp32_modules": "auto"})")
          .config.data_types.keep_in_fp32_modules.value.size(),
      0U);
  EXPECT_EQ(errors_of(R"("data_types": {"keep_in_fp32_modules": ["auto", "gate"]})"), "");
  EXPECT_THAT(
      errors_of(R"("data_types": {"keep_in_fp32_modules": "gate"})"),
      HasSubstr("needs a list of parts of names, or \"auto\"; write [ ] around the text"));
  EXPECT_THAT(
      errors_of(R"("data_types": {"keep_in_fp32_modules": ["bias$"]})"),
      HasSubstr("an invalid part of a name; got \"bias$\", expected letters, digits"));
}

TEST(DtypeRules, GradientsAddUpInFloat32OrTheParametersDtype) {
  for (const int stage : {0, 1, 2, 3}) {
    const std::string zero = R"("zero_optimization": {"stage": )" + std::to_string(stage) + "}, ";
    for (const std::string sums : {"fp32", "bf16"}) {
      EXPECT_EQ(
          errors_of(bf16(
              zero + R"("data_types": {"param_dtype": "bf16", "grad_accum_dtype": ")" + sums +
              "\"}")),
          "");
    }
  }
  EXPECT_THAT(
      errors_of(bf16(R"("data_types": {"grad_accum_dtype": "bf16"})")),
      HasSubstr(
          "grad_accum_dtype cannot be bf16 for fp32 parameters; set data_types.param_dtype to "
          "bf16, or write fp32"));
  EXPECT_THAT(
      errors_of(bf16(R"("data_types": {"param_dtype": "bf16", "grad_accum_dtype": "fp16"})")),
      HasSubstr("grad_accum_dtype cannot be fp16 for bf16 parameters"));
}

TEST(DtypeRules, GradientsOf16BitParametersAreSentIn16BitsOrInTheAccumulationDtype) {
  const auto of = [](const std::string& wire, const std::string& more, int stage = 1) {
    return errors_of(bf16(
        R"("communication_data_type": ")" + wire + R"(", "zero_optimization": {"stage": )" +
        std::to_string(stage) + R"(}, "data_types": {"param_dtype": "bf16")" + more + "}"));
  };
  const std::string sums = R"(, "grad_accum_dtype": "fp32")";
  EXPECT_EQ(of("bf16", ""), "");
  EXPECT_EQ(of("bf16", sums), "");
  EXPECT_EQ(of("fp32", sums), "");
  EXPECT_EQ(of("fp32", sums, 0), "");
  EXPECT_THAT(of("fp32", ""), HasSubstr("cannot be fp32 for bf16 parameters; write bf16,"));
  EXPECT_THAT(of("fp16", sums), HasSubstr("write bf16 or fp32, as grad_accum_dtype, or delete"));
  EXPECT_THAT(of("fp32", sums, 2), HasSubstr("write bf16, or delete it"));
}

TEST(DtypeRules, GradientsThatZeroPlusPlusQuantizesAreNotAlsoSentIn16Bits) {
  EXPECT_THAT(
      errors_of(adam() + R"("communication_data_type": "fp16",
            "zero_optimization": {"stage": 3, "zero_quantized_gradients": true})"),
      HasSubstr("communication_data_type fp16 cannot be combined with zero_quantized_gradients"));
}

TEST(DtypeRules, SixteenBitMastersImply16BitParameters) {
  const Reading reading =
      reading_with(adam() + R"("zero_optimization": {"stage": 1}, "bf16": {"enabled": true,
        "bf16_master_weights_and_grads": true, "bf16_optimizer_states": true})");
  EXPECT_EQ(lines_of(reading.errors), "");
  EXPECT_EQ(reading.config.data_types.param_dtype.value, FloatDtype::kBfloat16);
  EXPECT_EQ(
      described(reading.config.data_types.param_dtype.origin),
      "derived: bf16.bf16_master_weights_and_grads");
  EXPECT_EQ(
      errors_of(
          adam() + on_host() +
          R"("fp16": {"enabled": true, "fp16_master_weights_and_grads": true})"),
      "");
  EXPECT_EQ(
      errors_of(
          on_host() +
          R"("fp16": {"enabled": true, "fp16_master_weights_and_grads": true}, "optimizer":
        {"type": "AdamW", "params": {"lr": 0.1, "fp32_optimizer_states": false}})"),
      "");
}

TEST(DtypeRules, SixteenBitMastersNeedAStageAndDeepSpeedsConditions) {
  const std::string fp16 = R"("fp16": {"enabled": true, "fp16_master_weights_and_grads": true})";
  EXPECT_THAT(errors_of(adam() + fp16), HasSubstr("needs ZeRO; got stage 0, expected 1, 2"));
  EXPECT_THAT(
      errors_of(adam() + R"("zero_optimization": {"stage": 2}, )" + fp16),
      HasSubstr("set zero_optimization.offload_optimizer.device"));
  EXPECT_THAT(
      errors_of(adam() + R"("zero_optimization": {"stage": 2}, "bf16": {"enabled": true,
        "bf16_master_weights_and_grads": true})"),
      HasSubstr("offload_optimizer.device, or bf16.bf16_optimizer_states"));
  EXPECT_THAT(
      errors_of(adam() + on_host() + R"("fp16": {"fp16_master_weights_and_grads": true})"),
      HasSubstr("needs fp16.enabled"));
  EXPECT_THAT(
      errors_of(on_host() + R"("optimizer": {"type": "Lion"}, )" + fp16),
      HasSubstr("works only with Adam or AdamW, and not with torch_adam"));
  EXPECT_THAT(
      errors_of(adam() + on_host() + fp16 + R"(, "data_types": {"param_dtype": "fp32"})"),
      HasSubstr("fp32 conflicts with fp16.fp16_master_weights_and_grads"));
  EXPECT_THAT(
      errors_of(adam() + on_host() + fp16 + R"(, "data_types": {"grad_accum_dtype": "fp32"})"),
      HasSubstr("fp32 conflicts with fp16.fp16_master_weights_and_grads"));
}

TEST(DtypeRules, SixteenBitStateNeeds16BitMasters) {
  EXPECT_THAT(
      errors_of(adam() + R"("zero_optimization": {"stage": 2}, "bf16": {"enabled": true,
        "bf16_optimizer_states": true})"),
      HasSubstr("bf16.bf16_optimizer_states needs bf16.bf16_master_weights_and_grads"));
  EXPECT_THAT(
      errors_of(bf16(
          R"("optimizer": {"type": "Adam", "params": {"lr": 0.1, "fp32_optimizer_states": false}})")),
      HasSubstr("fp32_optimizer_states false, but float32 masters need float32 state"));
}

TEST(DtypeRules, SafeModulesAreNamesOrNoneAndGoWithAutocast) {
  const auto of = [](const std::string& modules, const std::string& more = "") {
    return R"("torch_autocast": {"enabled": true, "dtype": "bf16",
      "lower_precision_safe_modules": )" +
           modules + "}" + more;
  };
  const auto read = [&](const std::string& modules) {
    const Reading reading = reading_with(of(modules));
    EXPECT_EQ(lines_of(reading.errors), "");
    return reading.config.torch_autocast.lower_precision_safe_modules.value;
  };
  EXPECT_THAT(
      read(R"(["torch.nn.Linear", "my::BlockImpl"])"),
      testing::Optional(testing::ElementsAre("torch.nn.Linear", "my::BlockImpl")));
  EXPECT_THAT(read("[]"), testing::Optional(testing::IsEmpty()));
  EXPECT_EQ(read("null"), std::nullopt);
  EXPECT_THAT(
      errors_of(of("[3]")),
      HasSubstr("invalid value for torch_autocast.lower_precision_safe_modules;"));
  EXPECT_EQ(errors_of(of(R"(["Linear"])", R"(, "communication_data_type": "fp32")")), "");
  EXPECT_THAT(
      errors_of(of(R"(["Linear"])", R"(, "communication_data_type": "fp16")")),
      HasSubstr("communication_data_type fp16 is for all gradients and cannot be combined with "
                "torch_autocast."));
  for (const std::string key : {"zero_quantized_weights", "zero_quantized_gradients"}) {
    const std::string zero = R"(, "zero_optimization": {"stage": 3, ")" + key + "\": true}";
    EXPECT_THAT(
        errors_of(of("[]", zero)),
        HasSubstr(key + " cannot be combined with torch_autocast.lower_precision_safe_modules"));
    EXPECT_EQ(errors_of(of("null", zero)), "");
  }
  EXPECT_THAT(
      errors_of(R"("torch_autocast": {"lower_precision_safe_modules": ["Linear"]})"),
      HasSubstr("[ds.json:2:52] torch_autocast.lower_precision_safe_modules needs "
                "torch_autocast.enabled"));
}

}  // namespace
}  // namespace lockstep::ds_config
