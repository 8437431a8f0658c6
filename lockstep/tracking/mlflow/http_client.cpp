// SPDX-License-Identifier: Apache-2.0
#include "lockstep/tracking/mlflow/http_client.h"

#include <cctype>
#include <utility>

#include <fmt/format.h>

#ifdef LOCKSTEP_HAVE_CURL
#include <curl/curl.h>
#include <dlfcn.h>
#endif

#include "lockstep/base/error.h"

namespace lockstep::tracking {

std::string url_encoded(const std::string& text, bool keep_slashes) {
  std::string encoded;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    const bool plain = std::isalnum(byte) != 0 && byte < 0x80;
    if (plain || std::string("-._~").find(c) != std::string::npos || (c == '/' && keep_slashes)) {
      encoded += c;
    } else {
      encoded += fmt::format("%{:02X}", byte);
    }
  }
  return encoded;
}

#ifdef LOCKSTEP_HAVE_CURL

namespace {

constexpr long kConnectTimeoutS = 5;
constexpr long kTimeoutS = 60;

/// The functions of libcurl that this file uses.
struct Curl {
  decltype(&::curl_global_init) global_init = nullptr;
  decltype(&::curl_easy_init) init = nullptr;
  decltype(&::curl_easy_reset) reset = nullptr;
  decltype(&::curl_easy_setopt) set = nullptr;
  decltype(&::curl_easy_perform) perform = nullptr;
  decltype(&::curl_easy_getinfo) info = nullptr;
  decltype(&::curl_easy_cleanup) cleanup = nullptr;
  decltype(&::curl_easy_strerror) text = nullptr;
  decltype(&::curl_slist_append) list_append = nullptr;
  decltype(&::curl_slist_free_all) list_free = nullptr;
  bool complete = true;
};

template <class Function>
void load(Curl& curl, void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(::dlsym(library, name));
  curl.complete = curl.complete && function != nullptr;
}

Curl load_curl() {
  Curl curl;
  void* library = nullptr;
  for (const char* name : {"libcurl.so.4", "libcurl-gnutls.so.4"}) {
    library = library != nullptr ? library : ::dlopen(name, RTLD_NOW | RTLD_LOCAL);
  }
  if (library == nullptr) {
    curl.complete = false;
    return curl;
  }
  load(curl, library, "curl_global_init", curl.global_init);
  load(curl, library, "curl_easy_init", curl.init);
  load(curl, library, "curl_easy_reset", curl.reset);
  load(curl, library, "curl_easy_setopt", curl.set);
  load(curl, library, "curl_easy_perform", curl.perform);
  load(curl, library, "curl_easy_getinfo", curl.info);
  load(curl, library, "curl_easy_cleanup", curl.cleanup);
  load(curl, library, "curl_easy_strerror", curl.text);
  load(curl, library, "curl_slist_append", curl.list_append);
  load(curl, library, "curl_slist_free_all", curl.list_free);
  curl.complete = curl.complete && curl.global_init(CURL_GLOBAL_DEFAULT) == CURLE_OK;
  return curl;
}

const Curl& curl() {
  static const Curl loaded = load_curl();
  return loaded;
}

size_t append_body(char* data, size_t size, size_t count, void* body) {
  static_cast<std::string*>(body)->append(data, size * count);
  return size * count;
}

int stop_requested(
    void* stop,
    curl_off_t /*total*/,
    curl_off_t /*now*/,
    curl_off_t /*sent*/,
    curl_off_t /*left*/) {
  return *static_cast<const std::atomic<bool>*>(stop) ? 1 : 0;
}

}  // namespace

struct HttpClient::Handle {
  CURL* easy = nullptr;
};

bool have_http_client() {
  return curl().complete;
}

HttpClient::HttpClient(HttpOptions options, const std::atomic<bool>& stop)
    : handle_(std::make_unique<Handle>()), options_(std::move(options)), stop_(stop) {
  if (!have_http_client()) {
    throw ConfigError(
        "tracking",
        "libcurl.so.4 cannot be loaded; trackers on a server need it; install Debian's libcurl4");
  }
  handle_->easy = curl().init();
}

HttpClient::~HttpClient() {
  if (handle_->easy != nullptr) {
    curl().cleanup(handle_->easy);
  }
}

HttpAnswer HttpClient::send(
    const std::string& method,
    const std::string& url,
    const std::string& type,
    const std::string& body) {
  const Curl& api = curl();
  CURL* easy = handle_->easy;
  HttpAnswer answer;
  api.reset(easy);  // Keeps the connections.
  curl_slist* headers = api.list_append(nullptr, ("Content-Type: " + type).c_str());
  headers = api.list_append(headers, "Expect:");
  if (!options_.token.empty()) {
    headers = api.list_append(headers, ("Authorization: Bearer " + options_.token).c_str());
  } else if (!options_.user.empty()) {
    api.set(easy, CURLOPT_HTTPAUTH, CURLAUTH_BASIC);
    api.set(easy, CURLOPT_USERNAME, options_.user.c_str());
    api.set(easy, CURLOPT_PASSWORD, options_.password.c_str());
  }
  api.set(easy, CURLOPT_URL, url.c_str());
  api.set(easy, CURLOPT_PROTOCOLS_STR, "http,https");
  api.set(easy, CURLOPT_CUSTOMREQUEST, method.c_str());
  api.set(easy, CURLOPT_HTTPHEADER, headers);
  if (method != "GET") {
    api.set(easy, CURLOPT_POSTFIELDSIZE_LARGE, static_cast<curl_off_t>(body.size()));
    api.set(easy, CURLOPT_POSTFIELDS, body.data());
  }
  api.set(easy, CURLOPT_WRITEFUNCTION, &append_body);
  api.set(easy, CURLOPT_WRITEDATA, &answer.body);
  api.set(easy, CURLOPT_NOSIGNAL, 1L);
  api.set(easy, CURLOPT_CONNECTTIMEOUT, kConnectTimeoutS);
  api.set(easy, CURLOPT_TIMEOUT, kTimeoutS);
  api.set(easy, CURLOPT_NOPROGRESS, 0L);
  api.set(easy, CURLOPT_XFERINFOFUNCTION, &stop_requested);
  api.set(easy, CURLOPT_XFERINFODATA, &stop_);
  if (!options_.verify_tls) {
    api.set(easy, CURLOPT_SSL_VERIFYPEER, 0L);
    api.set(easy, CURLOPT_SSL_VERIFYHOST, 0L);
  }
  if (!options_.ca_file.empty()) {
    api.set(easy, CURLOPT_CAINFO, options_.ca_file.c_str());
  }
  const CURLcode code = api.perform(easy);
  api.list_free(headers);
  if (code != CURLE_OK) {
    answer.error = api.text(code);
    return answer;
  }
  long status = 0;
  api.info(easy, CURLINFO_RESPONSE_CODE, &status);
  answer.status = static_cast<int>(status);
  return answer;
}

#else

struct HttpClient::Handle {};

bool have_http_client() {
  return false;
}

HttpClient::HttpClient(HttpOptions options, const std::atomic<bool>& stop)
    : options_(std::move(options)), stop_(stop) {
  throw ConfigError(
      "tracking",
      "this build of Lockstep lacks libcurl; trackers on a server need it; install Debian's "
      "libcurl4-openssl-dev, and build again");
}

HttpClient::~HttpClient() = default;

HttpAnswer HttpClient::send(
    const std::string& /*method*/,
    const std::string& /*url*/,
    const std::string& /*type*/,
    const std::string& /*body*/) {
  return {};
}

#endif

HttpAnswer HttpClient::json(
    const std::string& method, const std::string& url, const std::string& body) {
  return send(method, url, "application/json", body);
}

HttpAnswer HttpClient::put(const std::string& url, const std::string& bytes) {
  return send("PUT", url, "application/octet-stream", bytes);
}

}  // namespace lockstep::tracking
