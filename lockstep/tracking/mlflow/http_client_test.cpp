// SPDX-License-Identifier: Apache-2.0
#include "lockstep/tracking/mlflow/http_client.h"

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/tracking/mlflow/test_http_server.h"

namespace lockstep::tracking {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

class Http : public testing::Test {
 protected:
  void SetUp() override {
    if (!have_http_client()) {
      GTEST_SKIP() << "libcurl is missing";
    }
  }
  TestHttpServer server_{[](const TestHttpServer::Request& request) {
    return TestHttpServer::Answer{201, "got " + request.body};
  }};
  std::atomic<bool> stop_{false};
};

TEST_F(Http, SendsBodiesAndReadsAnswers) {
  HttpClient client({}, stop_);
  const HttpAnswer posted = client.json("POST", server_.url() + "/a", "{\"b\":1}");
  EXPECT_EQ(posted.status, 201);
  EXPECT_EQ(posted.body, "got {\"b\":1}");
  const std::string bytes("\0\xff", 2);
  EXPECT_EQ(client.put(server_.url() + "/c", bytes).body, "got " + bytes);
  EXPECT_EQ(client.json("GET", server_.url() + "/d?e=f", "").status, 201);
  const auto requests = server_.requests();
  EXPECT_EQ(requests[0].line, "POST /a HTTP/1.1");
  EXPECT_THAT(
      requests[0].headers,
      AllOf(HasSubstr("Content-Type: application/json"), Not(HasSubstr("Authorization"))));
  EXPECT_EQ(requests[1].line, "PUT /c HTTP/1.1");
  EXPECT_EQ(requests[2].line, "GET /d?e=f HTTP/1.1");
}

TEST_F(Http, SendsCredentials) {
  HttpClient({.user = "ada", .password = "pw"}, stop_).json("GET", server_.url(), "");
  HttpClient({.user = "ada", .token = "secret"}, stop_).json("GET", server_.url(), "");
  const auto requests = server_.requests();
  EXPECT_THAT(requests[0].headers, HasSubstr("Authorization: Basic YWRhOnB3"));
  EXPECT_THAT(
      requests[1].headers,
      AllOf(HasSubstr("Authorization: Bearer secret"), Not(HasSubstr("Basic"))));
}

TEST_F(Http, NoServerIsNoStatusAndAReason) {
  HttpClient client({}, stop_);
  const HttpAnswer answer = client.json("GET", "http://127.0.0.1:1/", "");
  EXPECT_EQ(answer.status, 0);
  EXPECT_THAT(answer.error, HasSubstr("connect"));
}

TEST_F(Http, StopEndsARequest) {
  stop_ = true;
  HttpClient client({}, stop_);
  EXPECT_EQ(client.json("GET", server_.url(), "").status, 0);
}

TEST(UrlEncoded, EncodesAllButPlainCharacters) {
  EXPECT_EQ(url_encoded("a-b._~9/ α"), "a-b._~9%2F%20%CE%B1");
  EXPECT_EQ(url_encoded("a/b c", true), "a/b%20c");
}

}  // namespace
}  // namespace lockstep::tracking
