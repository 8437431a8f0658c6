// SPDX-License-Identifier: Apache-2.0
#include "lockstep/config/config_file.h"

#include <cerrno>
#include <cstring>
#include <sys/stat.h>
#include <system_error>

#include <fmt/format.h>

#include "lockstep/base/atomic_file.h"
#include "lockstep/base/error.h"
#include "lockstep/config/document/scalars.h"
#include "lockstep/config/settings/settings.h"

namespace lockstep::config {
namespace {

namespace fs = std::filesystem;
using Type = SettingType;

[[noreturn]] void fail_to_write(const fs::path& path, int error) {
  throw Error(path.native(), fmt::format("cannot be written; {}", std::strerror(error)));
}

void make_folder(const fs::path& folder) {
  if (folder.empty() || fs::is_directory(folder)) {
    return;
  }
  make_folder(folder.parent_path());
  // Only this user may enter, as the XDG specification asks.
  if (::mkdir(folder.c_str(), S_IRWXU) != 0 && errno != EEXIST) {
    fail_to_write(folder, errno);
  }
}

/// Returns the target of a symbolic link, which is the file to replace; else `path`.
fs::path resolve_links(const fs::path& path) {
  std::error_code error;
  if (!fs::is_symlink(path, error)) {
    return path;
  }
  const fs::path target = fs::weakly_canonical(path, error);
  return error || fs::is_symlink(target, error) ? path : target;
}

std::string render_value(const SettingSpec& spec, const std::string& text) {
  const bool is_plain =
      spec.type == Type::kInteger || spec.type == Type::kSeconds || spec.type == Type::kBoolean;
  return is_plain ? text : yaml_text(text);
}

std::string render_variables(const std::map<std::string, std::string>& variables) {
  std::string lines = "env:\n";
  for (const auto& [name, text] : variables) {
    lines += fmt::format("  {}: {}\n", name, yaml_text(text));
  }
  return lines;
}

/// Returns a value for the comment that shows a setting without a value.
std::string example_of(const SettingSpec& spec) {
  if (spec.type == Type::kVariables) {
    return "{NCCL_DEBUG: INFO}";
  }
  if (!spec.default_value.empty()) {
    return spec.default_value;
  }
  switch (spec.type) {
    case Type::kInteger:
      return non_integer_choices(spec).empty() ? std::to_string(static_cast<int64_t>(spec.min))
                                               : non_integer_choices(spec).front();
    case Type::kChoice:
      return yaml_text(spec.choices.front().value);
    default:
      return "...";
  }
}

}  // namespace

std::optional<ConfigLocation> find_config(
    const std::optional<std::string>& flag, const Environment& environment) {
  if (flag) {
    return ConfigLocation{*flag, "--config-file"};
  }
  if (const auto variable = environment.text("LOCKSTEP_CONFIG_FILE")) {
    return ConfigLocation{expand_home(*variable, environment), "LOCKSTEP_CONFIG_FILE"};
  }
  const auto xdg = environment.text("XDG_CONFIG_HOME");
  if (xdg && fs::path(*xdg).is_absolute()) {
    return ConfigLocation{fs::path(*xdg) / "lockstep" / "config.yaml", ""};
  }
  if (const auto home = environment.text("HOME")) {
    return ConfigLocation{fs::path(*home) / ".config" / "lockstep" / "config.yaml", ""};
  }
  return std::nullopt;
}

std::optional<Document> read_config(
    const std::optional<std::string>& flag, const Environment& environment) {
  const auto location = find_config(flag, environment);
  if (!location) {
    return std::nullopt;
  }
  std::error_code error;
  const bool is_missing = fs::status(location->path, error).type() == fs::file_type::not_found;
  if (is_missing && location->chosen_by.empty()) {
    return std::nullopt;
  }
  if (is_missing) {
    throw ConfigError(
        location->path.native(),
        fmt::format(
            "no such file, named by {}; create it with lockstep config --config-file {}",
            location->chosen_by,
            location->path.native()));
  }
  return read_document(location->path);
}

std::string render_config(const ConfigValues& values) {
  std::string text =
      "# Settings of `lockstep launch`. Flags and the environment override them;\n"
      "# `lockstep config show` prints the effective values and their origin.\n";
  for (const SettingSpec& spec : all_settings()) {
    text += "\n# " + spec.description;
    text += spec.unset.empty() ? "" : fmt::format(". Not set: {}", spec.unset);
    text += spec.type == Type::kText || spec.type == Type::kPath || spec.type == Type::kVariables
                ? ".\n"
                : fmt::format(".\n# Expects {}.\n", expected_of(spec));
    const auto found = values.settings.find(spec.name);
    if (spec.type == Type::kVariables && !values.variables.empty()) {
      text += render_variables(values.variables);
    } else if (found != values.settings.end() && !found->second.empty()) {
      text += fmt::format("{}: {}\n", spec.name, render_value(spec, found->second));
    } else {
      text += fmt::format("# {}: {}\n", spec.name, example_of(spec));
    }
  }
  return text;
}

bool write_config(const fs::path& path, const std::string& text, bool replace) {
  std::error_code error;
  const fs::path target = resolve_links(path);
  const fs::file_type type = fs::symlink_status(target, error).type();
  if (type != fs::file_type::not_found && type != fs::file_type::none) {
    if (!replace) {
      return false;
    }
    if (type != fs::file_type::regular) {
      throw ConfigError(
          path.native(), "not a regular file, so it is not replaced; choose another name");
    }
  }
  make_folder(target.parent_path());
  AtomicFile file(target);
  file.write(text);
  return file.rename_to(target, replace);
}

bool write_basic_config(const std::string& mixed_precision, const fs::path& path) {
  check_value(
      *find_setting("mixed_precision"), mixed_precision, "write_basic_config", "mixed_precision");
  fs::path target = path;
  if (target.empty()) {
    const auto location = find_config(std::nullopt, Environment::process());
    if (!location) {
      throw ConfigError(
          "write_basic_config",
          "HOME is not set, so there is no default path; set it, or give a path");
    }
    target = location->path;
  }
  const std::string text = render_config(
      {.settings = {{"num_processes", "auto"}, {"mixed_precision", mixed_precision}},
       .variables = {}});
  return write_config(target, text, false);
}

}  // namespace lockstep::config
