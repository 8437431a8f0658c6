// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace lockstep::tracking {

/// Answers HTTP requests on a port of 127.0.0.1, one after the other, and writes them down.
class TestHttpServer {
 public:
  struct Request {
    std::string line;     ///< "POST /path HTTP/1.1"
    std::string headers;  ///< All of them, as sent.
    std::string body;
  };
  struct Answer {
    int status = 200;
    std::string body = "{}";
  };
  using Handler = std::function<Answer(const Request& request)>;

  /// Takes any free port, or `port`.
  explicit TestHttpServer(Handler handler, int port = 0);
  ~TestHttpServer();

  int port() const { return port_; }
  std::string url() const { return "http://127.0.0.1:" + std::to_string(port_); }
  std::vector<Request> requests();

 private:
  void serve();
  void answer(int connection);

  Handler handler_;
  int listener_ = -1;
  int port_ = 0;
  std::atomic<bool> stop_{false};
  std::mutex mutex_;
  std::vector<Request> requests_;
  std::thread thread_;
};

}  // namespace lockstep::tracking
