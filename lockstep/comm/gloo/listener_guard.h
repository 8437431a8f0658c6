// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <condition_variable>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <sys/types.h>
#include <thread>
#include <vector>

#include "lockstep/base/unique_fd.h"

namespace lockstep::comm {

/// Returns this process's IPv4 and IPv6 sockets.
std::vector<int> own_sockets();
/// Returns the listening TCP sockets of this process: descriptors by inode.
std::map<ino_t, int> listening_sockets();

/// Raises the soft limit on open descriptors to the hard one, at most 65,536. A rank needs one
/// descriptor for each other rank and group.
void raise_descriptor_limit();

/// Restricts connections to Gloo's listening socket to the job's hosts.
///
/// Gloo accepts and keeps every connection, and its thread ends the process when accept fails. A
/// kernel packet filter (SO_ATTACH_FILTER) therefore drops packets of other machines. While the
/// ranks connect, packets of the job's hosts pass; afterwards none do. Idle connections wait in the
/// kernel (TCP_DEFER_ACCEPT) and cost no descriptor.
///
/// After 10 s without all ranks, packets of every address pass, with a warning, since the hosts may
/// be behind NAT. Later groups of the job skip that wait. If descriptors become scarce, no
/// connection is accepted any more, and fault() returns the reason. If the kernel lacks packet
/// filters, only fault() works.
///
/// Cost: a thread that wakes up every millisecond until close_to_all().
class ListenerGuard {
 public:
  /// `listener`: Gloo's socket, of which the guard keeps a duplicate; -1: none. `hosts`: the
  /// numeric addresses of the job's hosts; nothing: every address passes.
  ListenerGuard(
      int listener,
      const std::optional<std::vector<std::string>>& hosts,
      std::chrono::milliseconds patience = std::chrono::seconds(10));
  ~ListenerGuard();
  ListenerGuard(const ListenerGuard&) = delete;
  ListenerGuard& operator=(const ListenerGuard&) = delete;

  /// Drops every further connection, after all ranks have connected. Ends the filtering of accepted
  /// connections.
  void close_to_all();
  /// Returns whether the guard accepted every address while the ranks connected.
  bool admits_all();
  /// Returns why the guard closed the socket before the ranks had connected; empty if it did not.
  std::string fault();

 private:
  void stop();
  void watch();
  void close_if_descriptors_are_scarce();

  UniqueFd listener_;
  std::chrono::milliseconds patience_;
  bool restricted_ = false;
  std::mutex mutex_;  ///< Protects the three members below.
  bool admits_all_ = false;
  bool stopped_ = false;
  std::string fault_;
  std::condition_variable changed_;
  std::thread thread_;
};

}  // namespace lockstep::comm
