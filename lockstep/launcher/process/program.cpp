// SPDX-License-Identifier: Apache-2.0
#include "lockstep/launcher/process/program.h"

#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <string_view>
#include <sys/stat.h>
#include <unistd.h>

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/base/text/shell.h"
#include "lockstep/base/text/split.h"

namespace lockstep::launcher {
namespace {

namespace fs = std::filesystem;

/// Returns 0 if `path` is an executable file, else the errno.
int executable_error(const std::string& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) {
    return errno;
  }
  if (S_ISDIR(status.st_mode)) {
    return EISDIR;
  }
  return ::faccessat(AT_FDCWD, path.c_str(), X_OK, AT_EACCESS) == 0 ? 0 : errno;
}

[[noreturn]] void refuse(const std::string& name, int error, const std::string& hint) {
  throw ConfigError(
      "lockstep launch", fmt::format("cannot run '{}': {}{}", name, std::strerror(error), hint));
}

std::string search_path(const std::string& name, const Environment& environment) {
  const std::string path = environment.text("PATH").value_or("/bin:/usr/bin");
  int first_error = ENOENT;
  for (const std::string& folder : split(path, ':')) {
    std::string candidate = fmt::format("{}/{}", folder.empty() ? "." : folder, name);
    const int error = executable_error(candidate);
    if (error == 0) {
      return candidate;
    }
    if (error == EACCES) {
      first_error = EACCES;
    }
  }
  if (executable_error("./" + name) == 0) {
    refuse(name, ENOENT, fmt::format(" in PATH; try ./{}", name));
  }
  refuse(name, first_error, " in PATH; give its path, like ./build/train");
}

std::string find_executable(const std::string& name, const Environment& environment) {
  if (name.find('/') == std::string::npos) {
    return search_path(name, environment);
  }
  const int error = executable_error(name);
  if (error == EACCES) {
    refuse(name, error, fmt::format("; try chmod +x {}", shell_quoted({name})));
  }
  if (error != 0) {
    refuse(name, error, "");
  }
  return name;
}

/// Returns whether `prefix` is a virtual environment, or has the package lockstep.
bool is_python_environment(const fs::path& prefix) {
  std::error_code ignored;
  if (fs::exists(prefix / "pyvenv.cfg", ignored)) {
    return true;
  }
  for (const fs::directory_entry& folder : fs::directory_iterator(prefix / "lib", ignored)) {
    const std::string name = folder.path().filename();
    if (name.starts_with("python3") &&
        fs::exists(folder.path() / "site-packages/lockstep/__init__.py", ignored)) {
      return true;
    }
  }
  return false;
}

}  // namespace

std::string own_executable() {
  return fs::read_symlink("/proc/self/exe");
}

std::string python_for(const Environment& environment, const std::string& launcher) {
  if (const auto chosen = environment.text("LOCKSTEP_PYTHON")) {
    return *chosen;
  }
  const fs::path folder = fs::path(launcher).parent_path();
  if (is_python_environment(folder.parent_path())) {
    for (const char* name : {"python3", "python"}) {
      if (executable_error(folder / name) == 0) {
        return folder / name;
      }
    }
  }
  return "python3";
}

Program find_program(
    const std::vector<std::string>& words,
    const Environment& environment,
    ProgramKind kind,
    const std::string& launcher) {
  const std::string& name = words.at(0);
  if (name.empty()) {
    throw ConfigError(
        "lockstep launch", "the program's name is empty; expected a file or a command");
  }
  constexpr std::string_view kPythonSuffix = ".py";
  const bool is_module = kind == ProgramKind::kModule;
  if (!is_module && (kind == ProgramKind::kBinary || !name.ends_with(kPythonSuffix))) {
    return {find_executable(name, environment), words, false};
  }
  if (is_module && name.front() == '-') {
    throw ConfigError(
        "lockstep launch", fmt::format("'{}' is not a valid name of a Python module", name));
  }
  if (!is_module && ::access(name.c_str(), R_OK) != 0) {
    refuse(name, errno, "");
  }
  const std::string python = python_for(environment, launcher);
  std::vector<std::string> argv = {python};
  if (is_module) {
    argv.emplace_back("-m");
  }
  argv.insert(argv.end(), words.begin(), words.end());
  return {find_executable(python, environment), std::move(argv), true};
}

}  // namespace lockstep::launcher
