// SPDX-License-Identifier: Apache-2.0
#include "lockstep/precision/precision.h"

#include <array>
#include <map>
#include <vector>

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/base/text/suggest.h"

namespace lockstep {
namespace {

constexpr std::array kAll = {Precision::kNo, Precision::kFP16, Precision::kBF16};

/// Returns the precision's name for a name of other libraries; null if there is none.
const char* translated(const std::string& name) {
  static const std::map<std::string, const char*> words = {
      {"bfloat16", "bf16"},
      {"float16", "fp16"},
      {"half", "fp16"},
      {"float32", "no"},
      {"fp32", "no"},
      {"none", "no"}};
  const auto found = words.find(name);
  return found == words.end() ? nullptr : found->second;
}

}  // namespace

const char* name_of(Precision precision) {
  switch (precision) {
    case Precision::kNo:
      return "no";
    case Precision::kFP16:
      return "fp16";
    case Precision::kBF16:
      return "bf16";
  }
  LOCKSTEP_ASSERT(false, "a precision without a name");
  return "";
}

Precision parse_precision(const std::string& name) {
  std::vector<std::string> names;
  for (const Precision precision : kAll) {
    names.emplace_back(name_of(precision));
    if (name == names.back()) {
      return precision;
    }
  }
  if (name == "fp8") {
    throw ConfigError(
        "mixed_precision",
        "libtorch has no autocast to fp8; got 'fp8', expected no, fp16 or bf16; try bf16");
  }
  const char* ours = translated(name);
  throw ConfigError(
      "mixed_precision",
      fmt::format(
          "unknown precision; got '{}', expected no, fp16 or bf16{}",
          name,
          ours == nullptr ? did_you_mean(name, names) : fmt::format("; did you mean '{}'?", ours)));
}

c10::ScalarType autocast_dtype(Precision precision) {
  if (precision == Precision::kNo) {
    throw ConfigError("autocast", "invalid precision; got 'no', expected fp16 or bf16");
  }
  return precision == Precision::kFP16 ? c10::kHalf : c10::kBFloat16;
}

c10::ScalarType scalar_type_of(FloatDtype dtype) {
  switch (dtype) {
    case FloatDtype::kFloat16:
      return c10::kHalf;
    case FloatDtype::kBfloat16:
      return c10::kBFloat16;
    case FloatDtype::kFloat32:
      break;
  }
  return c10::kFloat;
}

std::optional<c10::ScalarType> scalar_type_of(const std::optional<FloatDtype>& dtype) {
  return dtype ? std::optional(scalar_type_of(*dtype)) : std::nullopt;
}

}  // namespace lockstep
