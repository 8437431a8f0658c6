// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/shm/local_socket.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <utility>

namespace lockstep::comm::shm {
namespace {

/// Returns the abstract address of `name`: its first byte is zero.
std::pair<sockaddr_un, socklen_t> address_of(const std::string& name) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const size_t length = std::min(name.size(), sizeof(address.sun_path) - 1);
  std::memcpy(address.sun_path + 1, name.data(), length);
  return {address, static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + length)};
}

UniqueFd make_socket() {
  return UniqueFd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
}

/// Holds a message that may have an open file attached.
struct SocketMessage {
  iovec content{};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
  msghdr header{};

  SocketMessage(void* data, size_t bytes) {
    content = {.iov_base = data, .iov_len = bytes};
    header.msg_iov = &content;
    header.msg_iovlen = 1;
  }
  SocketMessage(const SocketMessage&) = delete;
  SocketMessage& operator=(const SocketMessage&) = delete;
  /// Reserves space for a descriptor.
  void reserve_descriptor() {
    header.msg_control = control.data();
    header.msg_controllen = control.size();
  }
};

}  // namespace

UniqueFd listen_local(const std::string& name) {
  UniqueFd fd = make_socket();
  const auto [address, length] = address_of(name);
  const bool listens = fd.is_open() &&
                       ::bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), length) == 0 &&
                       ::listen(fd.get(), SOMAXCONN) == 0;
  return listens ? std::move(fd) : UniqueFd();
}

UniqueFd connect_local(const std::string& name) {
  UniqueFd fd = make_socket();
  const auto [address, length] = address_of(name);
  const bool connected =
      fd.is_open() && ::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), length) == 0;
  return connected ? std::move(fd) : UniqueFd();
}

Peer peer_of(int socket) {
  ucred peer{};
  socklen_t length = sizeof(peer);
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &length) != 0) {
    return {.pid = 0, .user = static_cast<uid_t>(-1)};
  }
  return {.pid = peer.pid, .user = peer.uid};
}

bool send_message(int socket, const void* data, size_t bytes, int file) {
  SocketMessage message(const_cast<void*>(data), bytes);
  if (file >= 0) {
    message.reserve_descriptor();
    cmsghdr* attached = CMSG_FIRSTHDR(&message.header);
    attached->cmsg_level = SOL_SOCKET;
    attached->cmsg_type = SCM_RIGHTS;
    attached->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(attached), &file, sizeof(int));
  }
  return ::sendmsg(socket, &message.header, MSG_NOSIGNAL) == static_cast<ssize_t>(bytes);
}

bool readable(int socket, Deadline deadline) {
  pollfd waiting{.fd = socket, .events = POLLIN, .revents = 0};
  while (true) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
                          deadline - std::chrono::steady_clock::now())
                          .count();
    const int ready = ::poll(&waiting, 1, static_cast<int>(std::clamp<int64_t>(left, 0, 60'000)));
    if (ready == 1) {
      return true;
    }
    if (left <= 0 || (ready < 0 && errno != EINTR)) {
      return false;
    }
  }
}

bool receive_message(int socket, void* data, size_t bytes, UniqueFd* file) {
  SocketMessage message(data, bytes);
  message.reserve_descriptor();
  const ssize_t got = ::recvmsg(socket, &message.header, MSG_CMSG_CLOEXEC);
  if (const cmsghdr* attached = got >= 0 ? CMSG_FIRSTHDR(&message.header) : nullptr;
      attached != nullptr && attached->cmsg_type == SCM_RIGHTS) {
    int passed = -1;
    std::memcpy(&passed, CMSG_DATA(attached), sizeof(int));
    UniqueFd owned(passed);
    if (file != nullptr) {
      *file = std::move(owned);
    }
  }
  return got == static_cast<ssize_t>(bytes) && (message.header.msg_flags & MSG_TRUNC) == 0;
}

}  // namespace lockstep::comm::shm
