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

/// The listening TCP sockets of this process: descriptors by inode.
std::map<ino_t, int> listening_sockets();

/// Sets the soft limit on open descriptors to the hard one, at most 65,536. A rank needs one
/// descriptor for each other rank and group.
void raise_descriptor_limit();

/// Decides who may connect to Gloo's listening socket.
///
/// Gloo accepts and keeps every connection, and its thread ends the process when accept fails. A
/// packet filter of the kernel (SO_ATTACH_FILTER) therefore drops what strangers send. While the
/// ranks connect, the addresses of the job's hosts pass; afterwards nothing does. Connections that
/// send nothing wait in the kernel (TCP_DEFER_ACCEPT) and cost no descriptor.
///
/// If the ranks have not connected after 10 s, every address passes and a warning says so: between
/// the hosts addresses may be translated. The job's later groups need not wait for that again. If
/// descriptors become scarce, nothing passes any more and fault() says why. Where the kernel has no
/// such filters, only fault() remains.
///
/// Cost: a thread that wakes up every millisecond until close_to_all().
/// Thread safety: one thread at a time.
class ListenerGuard {
 public:
  /// `listener`: Gloo's socket, of which the guard keeps a duplicate; -1: there is nothing to
  /// guard. `hosts`: the addresses of the job's hosts, as numbers; nothing: every address passes.
  ListenerGuard(
      int listener,
      const std::optional<std::vector<std::string>>& hosts,
      std::chrono::milliseconds patience = std::chrono::seconds(10));
  ~ListenerGuard();
  ListenerGuard(const ListenerGuard&) = delete;
  ListenerGuard& operator=(const ListenerGuard&) = delete;

  /// Drops every further connection: all ranks are connected. The connections that were accepted
  /// are no longer filtered.
  void close_to_all();
  /// Whether it had to let every address pass while the ranks connected.
  bool admits_all();
  /// Why the guard closed the socket before the ranks had connected; empty if it did not.
  std::string fault();

 private:
  void stop();
  void watch();
  void close_if_descriptors_are_scarce();

  UniqueFd listener_;
  std::chrono::milliseconds patience_;
  bool restricted_ = false;
  std::mutex mutex_;  ///< Of the three below.
  bool admits_all_ = false;
  bool stopped_ = false;
  std::string fault_;
  std::condition_variable changed_;
  std::thread thread_;
};

}  // namespace lockstep::comm
