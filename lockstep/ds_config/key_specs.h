// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "lockstep/ds_config/key_table.h"

/// How the sources of the table of keys write one down.
namespace lockstep::ds_config {

inline KeySpec works(std::string path, KeyKind kind, std::string words) {
  return {.path = std::move(path), .kind = kind, .words = std::move(words)};
}

inline KeySpec nothing(std::string path, KeyKind kind, std::string words) {
  return {
      .path = std::move(path),
      .kind = kind,
      .status = KeyStatus::kNothing,
      .words = std::move(words)};
}

inline KeySpec whole(std::string path, double least, std::string words) {
  return {
      .path = std::move(path),
      .kind = KeyKind::kInteger,
      .words = std::move(words),
      .least = least};
}

inline KeySpec refused_unless(std::string path, KeyKind kind, std::string fine, std::string words) {
  return {
      .path = std::move(path),
      .kind = kind,
      .status = KeyStatus::kRefused,
      .words = std::move(words),
      .fine = std::move(fine)};
}

inline KeySpec no_auto(KeySpec spec) {
  spec.auto_rule = AutoRule::kRefused;
  return spec;
}

inline KeySpec nullable(KeySpec spec) {
  spec.may_be_null = true;
  return spec;
}

inline KeySpec dtype(std::string path, std::string words) {
  return nullable(
      {.path = std::move(path),
       .kind = KeyKind::kChoice,
       .words = std::move(words),
       .choices = {"fp32", "fp16", "bf16"}});
}

inline KeySpec refused(std::string path, std::string words) {
  return {
      .path = std::move(path),
      .kind = KeyKind::kAnything,
      .status = KeyStatus::kRefused,
      .words = std::move(words)};
}

/// Another name of `successor`, an old one as a rule.
inline KeySpec other_name(std::string path, KeyKind kind, std::string successor) {
  KeySpec spec = works(std::move(path), kind, "write " + successor);
  spec.successor = std::move(successor);
  return spec;
}

// The table's parts, one a source.
std::vector<KeySpec> batch_and_precision_keys();
std::vector<KeySpec> zero_keys();
std::vector<KeySpec> watching_keys();
std::vector<KeySpec> activation_keys();
std::vector<KeySpec> refused_keys();

}  // namespace lockstep::ds_config
