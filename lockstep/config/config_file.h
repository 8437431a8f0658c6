// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "lockstep/base/env.h"
#include "lockstep/config/document/document.h"
#include "lockstep/config/settings/settings.h"

namespace lockstep::config {

/// The location of the configuration of `lockstep launch`.
struct ConfigLocation {
  std::filesystem::path path;
  std::string chosen_by;  ///< "--config-file" or LOCKSTEP_CONFIG_FILE; empty: the default location.
};

/// Returns the first that is set: `flag`, which is --config-file; LOCKSTEP_CONFIG_FILE; the file
/// lockstep/config.yaml in $XDG_CONFIG_HOME, if that is an absolute path, or in ~/.config. Returns
/// nothing if HOME is not set either.
std::optional<ConfigLocation> find_config(
    const std::optional<std::string>& flag, const Environment& environment);

/// Reads the file. Returns nothing if the default location has no file. Throws ConfigError, naming
/// the flag or variable, if a chosen file does not exist, and as read_document.
std::optional<Document> read_config(
    const std::optional<std::string>& flag, const Environment& environment);

/// Renders a file with these values and, in comments, all other settings with their defaults.
/// `resolve` of it returns the same values.
std::string render_config(const ConfigValues& values);

/// Writes a file with mode 0600, atomically, and its missing folders. Follows a symbolic link.
/// Returns false and changes nothing if the file exists and `replace` is not set. Throws Error for
/// a disk error.
bool write_config(const std::filesystem::path& path, const std::string& text, bool replace);

/// Writes the configuration that suits most machines, as Accelerate's function of this name does: a
/// process for each GPU, or for each core without GPUs. The precision is no, fp16 or bf16.
/// `path`: empty for the default of `lockstep launch`. Returns false and changes nothing if the
/// file exists. Throws ConfigError for another precision.
bool write_basic_config(
    const std::string& mixed_precision = "no", const std::filesystem::path& path = {});

}  // namespace lockstep::config
