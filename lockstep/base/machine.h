// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace lockstep {

/// What a machine has, as the kernel tells it: for reports that people read. Where the kernel says
/// nothing a text is empty, a number 0, and an optional has no value.
struct Machine {
  struct System {
    std::string name;          ///< "Debian GNU/Linux 12 (bookworm)".
    std::string kernel;        ///< "Linux 6.1.0-18-amd64".
    std::string architecture;  ///< "x86_64".
    std::string host;
  };
  struct Cpu {
    std::string model;
    int cores = 0;       ///< That are online.
    int allowed = 0;     ///< That this process may run on.
    int numa_nodes = 0;  ///< 0 where the kernel knows of none.
    std::optional<double>
        cgroup_cores;  ///< At most as much time as so many give; nothing: no limit.
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
  /// One of `ulimit`'s. Nothing: unlimited.
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
  std::optional<SharedMemory> shared_memory;  ///< Nothing if there is no /dev/shm.
  std::vector<Limit> limits;                  ///< nofile, memlock, nproc.
  std::vector<Interface> interfaces;          ///< Sorted by name.
  std::vector<std::string> gpus;              ///< Models of NVIDIA's, one for each.
  std::string gpu_driver;                     ///< What NVIDIA's kernel module says of itself.
};

/// Only that, in 0.1 ms; else as below.
Machine::Memory describe_memory(const std::filesystem::path& root = "/");

/// Only that: the kernel's network interfaces, sorted by name.
std::vector<Machine::Interface> describe_interfaces();

/// The addresses of the interfaces that are up, without loopback, as numbers.
std::set<std::string> interface_addresses();

/// Looks. Reads files below `root`, which tests make up; what has no file is asked of the kernel.
/// Takes milliseconds, runs no program, and throws nothing for what is missing or unreadable.
/// Thread-safe.
Machine describe_machine(const std::filesystem::path& root = "/");

}  // namespace lockstep
