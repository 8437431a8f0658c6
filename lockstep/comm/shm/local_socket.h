// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <optional>
#include <string>
#include <sys/types.h>

#include "lockstep/base/unique_fd.h"

namespace lockstep::comm::shm {

// Connects processes of one host by sockets in Linux's abstract namespace. These sockets leave no
// file behind, can pass an open file, and preserve message boundaries. No function throws;
// functions return false if the peer is lost.

using Deadline = std::chrono::steady_clock::time_point;

/// Listens at `name`, at most 100 bytes. The result is not open, with errno EADDRINUSE, if another
/// process listens there.
UniqueFd listen_local(const std::string& name);
/// Connects to `name`. The result is not open if no process listens.
UniqueFd connect_local(const std::string& name);

/// Holds the credentials of the peer, from the kernel.
struct Peer {
  pid_t pid;
  uid_t user;
};
Peer peer_of(int socket);

/// Sends one message, with the open descriptor `file` unless that is negative. Returns false if the
/// peer is lost.
bool send_message(int socket, const void* data, size_t bytes, int file = -1);

/// Returns whether data or the end of the stream arrives before `deadline`.
bool readable(int socket, Deadline deadline);

/// Reads a message of exactly `bytes`, which must have arrived. Returns false for another size, and
/// at the end of the stream. `file`, if given, receives the passed descriptor.
bool receive_message(int socket, void* data, size_t bytes, UniqueFd* file = nullptr);

}  // namespace lockstep::comm::shm
