// SPDX-License-Identifier: Apache-2.0
//
// libFuzzer target for the readers of files that users write. The first byte of an input selects
// the reader, the rest is the text.
#include <cstddef>
#include <cstdint>
#include <string>

#include "lockstep/base/env.h"
#include "lockstep/base/error.h"
#include "lockstep/config/config_file.h"
#include "lockstep/config/document/document.h"
#include "lockstep/config/import/import_accelerate.h"
#include "lockstep/config/settings/settings.h"
#include "lockstep/ds_config/ds_config.h"
#include "lockstep/launcher/plan/env_file.h"
#include "lockstep/launcher/plan/host_filter.h"
#include "lockstep/launcher/plan/hostfile.h"
#include "tests/fuzz/require.h"

namespace {

using lockstep::ConfigError;
using lockstep::Environment;
using lockstep::config::Document;
using lockstep::config::Format;
using lockstep::fuzz::require;

constexpr const char* kPath = "the/file";

enum class Reader : uint8_t {
  kYaml,
  kJson,
  kAccelerate,
  kHostfile,
  kEnvFile,
  kHostFilter,
  kDsConfig,
  kCount
};

/// A message names the file, and does not repeat its content; the command line makes it printable.
void require_short(const ConfigError& error) {
  const std::string message = error.what();
  require(message.find(kPath) != std::string::npos, "a message without the path: " + message);
  require(message.size() < 2000, "a message that is too long: " + message);
}

/// A valid file of settings means the same after it is written and read again.
void try_settings(const Document& document) {
  const bool right = lockstep::config::faults_of(document).empty();
  bool resolved = false;
  try {
    lockstep::config::resolve({}, Environment::of({{"HOME", "/home/user"}}), document);
    resolved = true;
  } catch (const ConfigError& error) {
    require_short(error);
  }
  require(right || !resolved, "settings with faults were taken");
  if (!resolved) {
    return;
  }
  const lockstep::config::ConfigValues values = lockstep::config::values_of(document);
  const Document again = lockstep::config::parse_document(
      kPath, lockstep::config::render_config(values), Format::kYaml);
  const lockstep::config::ConfigValues back = lockstep::config::values_of(again);
  require(
      back.settings == values.settings && back.variables == values.variables,
      "other settings after a round trip");
}

/// Each error has a place. A file without errors can be used.
void try_ds_config(const std::string& text) {
  const auto reading = lockstep::ds_config::read_ds_config(
      lockstep::config::parse_document(kPath, text, Format::kCommentedJson), 4);
  for (const lockstep::ds_config::Diagnostic& error : reading.errors) {
    require_short(ConfigError(error.where, error.what));
  }
  if (!reading.errors.empty()) {
    return;
  }
  const lockstep::ds_config::BatchSizes& batch = reading.config.batch;
  require(
      batch.train_batch_size.value ==
          batch.train_micro_batch_size_per_gpu.value * batch.gradient_accumulation_steps.value * 4,
      "batch sizes that do not come out");
  if (reading.config.scheduler) {
    reading.config.scheduler->schedule.value().lr(0, 1);
  }
}

void try_reader(Reader reader, const std::string& text) {
  switch (reader) {
    case Reader::kYaml:
      try_settings(lockstep::config::parse_document(kPath, text, Format::kYaml));
      return;
    case Reader::kJson:
      try_settings(lockstep::config::parse_document(kPath, text, Format::kJson));
      return;
    case Reader::kAccelerate:
      lockstep::config::import_accelerate(
          lockstep::config::parse_document(kPath, text, Format::kYaml),
          Environment::of({{"HOME", "/home/user"}}));
      return;
    case Reader::kHostfile:
      for (const lockstep::launcher::Host& host : lockstep::launcher::parse_hostfile(text, kPath)) {
        require(lockstep::launcher::host_name_fault(host.name).empty(), "a name unfit for ssh");
        require(host.slots > 0, "a host without slots");
      }
      return;
    case Reader::kEnvFile:
      for (const lockstep::config::EnvVariable& variable :
           lockstep::launcher::parse_env_file(text, kPath)) {
        require(
            lockstep::launcher::variable_fault(variable.name).empty(), "a name unfit to be set");
      }
      return;
    case Reader::kDsConfig:
      try_ds_config(text);
      return;
    default:
      return;
  }
}

/// The message names hosts, and no file.
void try_filter(const std::string& text) {
  try {
    const auto hosts =
        lockstep::launcher::filter_hosts({{"one", 2}, {"two", 4}, {"::1", 1}}, text, "", 0);
    require(!hosts.empty(), "a filter that leaves nothing");
  } catch (const ConfigError&) {  // NOLINT(bugprone-empty-catch): it may refuse it.
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* input, size_t size) {
  if (size == 0) {
    return 0;
  }
  const auto reader = static_cast<Reader>(*input % static_cast<uint8_t>(Reader::kCount));
  const std::string text(reinterpret_cast<const char*>(input) + 1, size - 1);
  if (reader == Reader::kHostFilter) {
    try_filter(text);
    return 0;
  }
  try {
    try_reader(reader, text);
  } catch (const ConfigError& error) {
    require_short(error);
  }
  return 0;
}
