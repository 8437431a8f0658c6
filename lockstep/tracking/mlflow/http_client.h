// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <memory>
#include <string>

namespace lockstep::tracking {

/// The authentication and the TLS settings of an HttpClient.
struct HttpOptions {
  std::string user = {};      ///< For basic authentication, with `password`.
  std::string password = {};  ///< Sent only with `user`.
  std::string token = {};     ///< For `Authorization: Bearer`; before user and password.
  bool verify_tls = true;
  std::string ca_file = {};  ///< A file of certificates to trust; empty: the system's.
};

/// A server's answer.
struct HttpAnswer {
  int status = 0;     ///< 0: there was no answer.
  std::string body;   ///< As sent.
  std::string error;  ///< Says why there was none.
};

/// Sends requests of HTTP(S) by libcurl, which it loads at its first use.
///
/// So a program needs the library only if it uses such a tracker. Connections are kept open.
/// Redirects are not followed. Used by one thread.
class HttpClient {
 public:
  /// Throws ConfigError if this build or this machine lacks libcurl. `stop` ends a running request
  /// within a second.
  HttpClient(HttpOptions options, const std::atomic<bool>& stop);
  ~HttpClient();
  HttpClient(const HttpClient&) = delete;
  HttpClient& operator=(const HttpClient&) = delete;

  /// Sends a request with JSON, or without a body if `body` is empty. `method`: GET, POST.
  HttpAnswer json(const std::string& method, const std::string& url, const std::string& body);
  /// Sends a file's bytes by PUT.
  HttpAnswer put(const std::string& url, const std::string& bytes);

 private:
  HttpAnswer send(
      const std::string& method,
      const std::string& url,
      const std::string& type,
      const std::string& body);

  struct Handle;
  std::unique_ptr<Handle> handle_;
  HttpOptions options_;
  const std::atomic<bool>& stop_;
};

/// Returns whether HttpClient can be constructed.
bool have_http_client();

/// Encodes all bytes but letters, digits and `-._~` as %XX; keeps '/' if `keep_slashes`.
std::string url_encoded(const std::string& text, bool keep_slashes = false);

}  // namespace lockstep::tracking
