// SPDX-License-Identifier: Apache-2.0
//
// A rank of `lockstep test`: lockstep_selftest FOLDER [--silent]. The main process prints each
// result, unless --silent, and writes it to FOLDER/checks.jsonl, which `lockstep test` reads. The
// exit code is 0 if all checks were run.
#include <cstdio>
#include <dlfcn.h>
#include <filesystem>
#include <fstream>
#include <link.h>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "cli/selftest/check.h"
#include "lockstep/base/error.h"
#include "lockstep/base/program/run_main.h"
#include "lockstep/comm/connect/connect.h"

namespace {

namespace selftest = lockstep::selftest;
using Json = nlohmann::json;

/// Loads libtorch's library for CUDA, if it is beside that for CPUs. This program does not link
/// it, because packages contain a build with a libtorch for CPUs. libtorch must not have searched
/// for devices yet.
void load_cuda_library() {
  link_map* loaded = nullptr;
  void* const cpu_library = dlopen("libtorch_cpu.so", RTLD_NOW | RTLD_NOLOAD);
  if (cpu_library == nullptr ||
      dlinfo(cpu_library, RTLD_DI_LINKMAP, static_cast<void*>(&loaded)) != 0) {
    return;
  }
  const auto cuda_library =
      std::filesystem::path(loaded->l_name).replace_filename("libtorch_cuda.so");
  if (std::filesystem::exists(cuda_library) &&
      dlopen(cuda_library.c_str(), RTLD_NOW | RTLD_GLOBAL) == nullptr) {
    throw lockstep::ConfigError(
        "lockstep_selftest",
        fmt::format(
            "libtorch's library for CUDA cannot be loaded: {}; install the packages that torch "
            "requires",
            dlerror()));
  }
}

void write_result(const selftest::Result& result, std::ofstream& file) {
  Json failures = Json::array();
  for (const selftest::RankFailure& failure : result.failures) {
    failures.push_back({{"rank", failure.rank}, {"message", failure.message}});
  }
  const Json line = {
      {"name", result.name},
      {"what", result.what},
      {"ok", result.failures.empty()},
      {"seconds", result.seconds},
      {"failures", failures}};
  file << line.dump(-1, ' ', false, Json::error_handler_t::replace) << '\n' << std::flush;
}

void print_result(const selftest::Result& result) {
  const std::string text = fmt::format(
      "  {}  {:<14} {:7.1f} ms  {}\n",
      result.failures.empty() ? "ok  " : "FAIL",
      result.name,
      result.seconds * 1000,
      result.what);
  std::fputs(text.c_str(), stdout);
  for (const selftest::RankFailure& failure : result.failures) {
    std::fputs(fmt::format("        rank {}: {}\n", failure.rank, failure.message).c_str(), stdout);
  }
  std::fflush(stdout);
}

int run(const std::vector<std::string>& words) {
  const bool silent = words.size() == 2 && words[1] == "--silent";
  if (words.empty() || (words.size() > 1 && !silent)) {
    throw lockstep::ConfigError(
        "lockstep_selftest",
        "only `lockstep test` runs this program; expected a folder, and optionally --silent");
  }
  load_cuda_library();
  const lockstep::Environment environment = lockstep::Environment::process();
  const lockstep::WorldSpec world = lockstep::world_from_environment(environment);
  selftest::Rank rank{
      world,
      lockstep::connect(world, lockstep::ConnectOptions::from_environment(environment)),
      words[0]};
  std::ofstream file;
  if (world.rank == 0) {
    file.open(rank.folder / "checks.jsonl");
  }
  std::vector<selftest::Check> checks = selftest::collective_checks();
  for (selftest::Check& check : selftest::training_checks()) {
    checks.push_back(std::move(check));
  }
  selftest::run_checks(rank, checks, [&](const selftest::Result& result) {
    if (world.rank == 0) {
      write_result(result, file);
      if (!silent) {
        print_result(result);
      }
    }
  });
  rank.group.barrier();
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  return lockstep::run_main([&] { return run({argv + 1, argv + argc}); });
}
