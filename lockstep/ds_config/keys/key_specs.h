// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "lockstep/ds_config/keys/key_table.h"

/// Functions that create rows of the table of keys.
namespace lockstep::ds_config {

inline KeySpec works(std::string path, KeyKind kind, std::string description) {
  return {.path = std::move(path), .kind = kind, .description = std::move(description)};
}

inline KeySpec ignored(std::string path, KeyKind kind, std::string description) {
  return {
      .path = std::move(path),
      .kind = kind,
      .status = KeyStatus::kIgnored,
      .description = std::move(description)};
}

inline KeySpec integer(std::string path, double least, std::string description) {
  return {
      .path = std::move(path),
      .kind = KeyKind::kInteger,
      .description = std::move(description),
      .least = least};
}

inline KeySpec refused_unless(
    std::string path, KeyKind kind, std::string accepted_value, std::string description) {
  return {
      .path = std::move(path),
      .kind = kind,
      .status = KeyStatus::kRefused,
      .description = std::move(description),
      .accepted_value = std::move(accepted_value)};
}

inline KeySpec no_auto(KeySpec spec) {
  spec.auto_rule = AutoRule::kRefused;
  return spec;
}

inline KeySpec nullable(KeySpec spec) {
  spec.may_be_null = true;
  return spec;
}

inline KeySpec dtype(std::string path, std::string description) {
  return nullable(
      {.path = std::move(path),
       .kind = KeyKind::kChoice,
       .description = std::move(description),
       .choices = {"fp32", "fp16", "bf16"}});
}

inline KeySpec refused(std::string path, std::string description) {
  return {
      .path = std::move(path),
      .kind = KeyKind::kAny,
      .status = KeyStatus::kRefused,
      .description = std::move(description)};
}

/// Creates another, usually old, name of `successor`.
inline KeySpec other_name(std::string path, KeyKind kind, std::string successor) {
  KeySpec spec = works(std::move(path), kind, "write " + successor);
  spec.successor = std::move(successor);
  return spec;
}

/// Stores the value of a key in the member of DsConfig at `Path`, a Resolved:
/// `stored<&DsConfig::fp16, &Fp16Section::enabled>(works("fp16.enabled", ...))`.
template <auto... Path>
KeySpec stored(KeySpec spec) {
  using Value = decltype((DsConfig().*....*Path).value);
  spec.field = +[](DsConfig& config, const std::string& /*path*/) {
    auto& resolved = (config.*....*Path);
    return FieldRef<Value>{resolved.value, resolved.origin};
  };
  return spec;
}

// The parts of the table, one in each source.
std::vector<KeySpec> batch_and_precision_keys();
std::vector<KeySpec> zero_keys();
std::vector<KeySpec> watching_keys();
std::vector<KeySpec> activation_keys();
std::vector<KeySpec> parallel_keys();
std::vector<KeySpec> refused_keys();

}  // namespace lockstep::ds_config
