// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace lockstep {

/// The hardware and system facts of a machine, as the kernel reports them. If the kernel does
/// not report a fact, a text is empty, a number is 0, and an optional has no value.
struct Machine {
  struct System {
    std::string name;          ///< "Debian GNU/Linux 12 (bookworm)".
    std::string kernel;        ///< "Linux 6.1.0-18-amd64".
    std::string architecture;  ///< "x86_64".
    std::string host;
  };
  struct Cpu {
    std::string model;
    int cores = 0;                       ///< Online cores.
    int allowed = 0;                     ///< Cores that this process may run on.
    int numa_nodes = 0;                  ///< 0 if the kernel reports none.
    std::optional<double> cgroup_cores;  ///< The cgroup's CPU limit, in cores; nothing: no limit.
  };
  struct Memory {
    uint64_t bytes = 0;
    uint64_t available_bytes = 0;
    std::optional<uint64_t> cgroup_bytes;  ///< Nothing: no limit.
  };
  struct SharedMemory {
    uint64_t bytes = 0;
    uint64_t free_bytes = 0;
  };
  /// One of `ulimit`'s limits. Nothing: unlimited.
  struct Limit {
    std::string name;
    std::optional<uint64_t> soft;
    std::optional<uint64_t> hard;
  };
  struct Interface {
    std::string name;
    bool up = false;
    bool loopback = false;
    std::vector<std::string> addresses;  ///< IPv4 and IPv6.
  };

  System system;
  Cpu cpu;
  Memory memory;
  std::optional<SharedMemory> shared_memory;  ///< Nothing without /dev/shm.
  std::vector<Limit> limits;                  ///< nofile, memlock, nproc.
  std::vector<Interface> interfaces;          ///< Sorted by name.
  std::vector<std::string> gpus;              ///< Model names of NVIDIA GPUs, one for each.
  std::string gpu_driver;                     ///< The version that NVIDIA's kernel module reports.
};

/// Reads only the memory facts, in 0.1 ms; see describe_machine for the rest.
Machine::Memory describe_memory(const std::filesystem::path& root = "/");

/// Reads only the kernel's network interfaces, sorted by name.
std::vector<Machine::Interface> describe_interfaces();

/// Returns the numeric addresses of the interfaces that are up, without loopback.
std::set<std::string> interface_addresses();

/// Collects all facts. Reads files below `root`, which tests replace; other facts come from system
/// calls. Takes milliseconds, runs no program, and throws nothing for missing or unreadable files.
/// Thread-safe.
Machine describe_machine(const std::filesystem::path& root = "/");

}  // namespace lockstep
