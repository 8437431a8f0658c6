// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "lockstep/base/env.h"
#include "lockstep/config/document.h"
#include "lockstep/config/settings.h"

namespace lockstep::config {

/// Where the configuration of `lockstep launch` lies.
struct ConfigLocation {
  std::filesystem::path path;
  std::string chosen_by;  ///< "--config-file" or LOCKSTEP_CONFIG_FILE; empty: the default place.
};

/// `flag`, a --config-file, if there is one; else LOCKSTEP_CONFIG_FILE; else
/// $XDG_CONFIG_HOME/lockstep/config.yaml, which is ~/.config/lockstep/config.yaml if that variable
/// is not set or no absolute path. Nothing if HOME is not set either.
std::optional<ConfigLocation> find_config(
    const std::optional<std::string>& flag, const Environment& environment);

/// The file there; nothing if there is no file in the default place. ConfigError, naming who chose
/// it, if a chosen one is not there, and for what read_document refuses.
std::optional<Document> read_config(
    const std::optional<std::string>& flag, const Environment& environment);

/// A file that says these values and, in comments, all other settings with what happens without
/// them. `resolve` of it gives the values back.
std::string render_config(const ConfigValues& values);

/// Writes a file that only this user may read, whole or not at all, and its missing folders.
/// Follows a symbolic link. If there is a file and `replace` is not set it stays as it is, and the
/// answer is false. Error if the disk says no.
bool write_config(const std::filesystem::path& path, const std::string& text, bool replace);

/// Writes the configuration that suits most machines, as Accelerate's function of this name does: a
/// process a GPU, or a core where there is none, in the given precision: no, fp16 or bf16. `path`:
/// empty for the place where `lockstep launch` looks. Returns false, and leaves it as it is, if
/// there is a file. ConfigError for another precision.
bool write_basic_config(
    const std::string& mixed_precision = "no", const std::filesystem::path& path = {});

}  // namespace lockstep::config
