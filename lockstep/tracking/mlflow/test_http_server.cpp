// SPDX-License-Identifier: Apache-2.0
#include "lockstep/tracking/mlflow/test_http_server.h"

#include <arpa/inet.h>
#include <array>
#include <netinet/in.h>
#include <poll.h>
#include <stdexcept>
#include <sys/socket.h>
#include <unistd.h>
#include <utility>

namespace lockstep::tracking {

TestHttpServer::TestHttpServer(Handler handler, int port) : handler_(std::move(handler)) {
  listener_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int yes = 1;
  ::setsockopt(listener_, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  auto* any = reinterpret_cast<sockaddr*>(&address);
  if (::bind(listener_, any, size) != 0 || ::listen(listener_, 16) != 0 ||
      ::getsockname(listener_, any, &size) != 0) {
    throw std::runtime_error("no port for the test server");
  }
  port_ = ntohs(address.sin_port);
  thread_ = std::thread([this] { serve(); });
}

TestHttpServer::~TestHttpServer() {
  stop_ = true;
  thread_.join();
  ::close(listener_);
}

std::vector<TestHttpServer::Request> TestHttpServer::requests() {
  const std::lock_guard lock(mutex_);
  return requests_;
}

void TestHttpServer::serve() {
  while (!stop_) {
    pollfd event{listener_, POLLIN, 0};
    if (::poll(&event, 1, 20) == 1) {
      const int connection = ::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
      answer(connection);
      ::close(connection);
    }
  }
}

void TestHttpServer::answer(int connection) {
  std::string text;
  std::array<char, 4096> buffer{};
  size_t end = std::string::npos;
  size_t length = 0;
  while (end == std::string::npos || text.size() < end + 4 + length) {
    const ssize_t got = ::recv(connection, buffer.data(), buffer.size(), 0);
    if (got <= 0) {
      return;
    }
    text.append(buffer.data(), static_cast<size_t>(got));
    end = text.find("\r\n\r\n");
    const size_t at = text.find("Content-Length: ");
    length = at == std::string::npos ? 0 : std::stoul(text.substr(at + 16));
  }
  const size_t line = text.find("\r\n");
  const Request request{
      text.substr(0, line), text.substr(line + 2, end - line - 2), text.substr(end + 4)};
  {
    const std::lock_guard lock(mutex_);
    requests_.push_back(request);
  }
  const Answer reply = handler_(request);
  const std::string out =
      "HTTP/1.1 " + std::to_string(reply.status) +
      " Text\r\nConnection: close\r\nContent-Length: " + std::to_string(reply.body.size()) +
      "\r\n\r\n" + reply.body;
  ::send(connection, out.data(), out.size(), MSG_NOSIGNAL);
}

}  // namespace lockstep::tracking
