// SPDX-License-Identifier: Apache-2.0
#include "lockstep/tracking/mlflow/mlflow_tracker.h"

#include <atomic>
#include <cmath>
#include <csignal>
#include <cstdlib>
#include <mutex>
#include <set>
#include <string>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "lockstep/base/error.h"
#include "lockstep/base/log.h"
#include "lockstep/tracking/mlflow/test_http_server.h"
#include "lockstep/tracking/test_folder.h"
#include "lockstep/tracking/values/images.h"
#include "lockstep/tracking/values/table.h"

namespace lockstep::tracking {
namespace {

using nlohmann::json;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;
using testing::ThrowsMessage;

using Answer = TestHttpServer::Answer;
using Request = TestHttpServer::Request;

/// Answers as MLflow's server does for a new experiment and run.
Answer answer_as_mlflow(const Request& request) {
  if (request.line.find("get-by-name") != std::string::npos) {
    return {404, R"({"error_code":"RESOURCE_DOES_NOT_EXIST","message":"no such experiment"})"};
  }
  if (request.line.find("experiments/create") != std::string::npos) {
    return {200, R"({"experiment_id":"7"})"};
  }
  if (request.line.find("runs/create") != std::string::npos) {
    return {
        200,
        R"({"run":{"info":{"run_id":"r1","experiment_id":"7","artifact_uri":"mlflow-artifacts:/7/r1/artifacts"}}})"};
  }
  return {200, "{}"};
}

class Mlflow : public testing::Test {
 protected:
  void SetUp() override {
    if (!have_http_client()) {
      GTEST_SKIP() << "libcurl is missing";
    }
    set_log_sink([this](const std::string& line) {
      const std::lock_guard lock(mutex_);
      log_.push_back(line);
    });
  }
  void TearDown() override { set_log_sink(nullptr); }

  MlflowOptions options(const std::string& uri, double timeout_s = 60) const {
    return {.tracking_uri = uri, .experiment_name = "demo", .finish_timeout_s = timeout_s};
  }
  /// Returns the bodies of all requests of a call, in order.
  static std::vector<json> bodies(TestHttpServer& server, const std::string& call) {
    std::vector<json> found;
    for (const Request& request : server.requests()) {
      if (request.line.find(call) != std::string::npos) {
        found.push_back(json::parse(request.body));
      }
    }
    return found;
  }
  std::filesystem::path spools() const { return folder_ / "run"; }
  std::vector<std::string> logged() {
    const std::lock_guard lock(mutex_);
    return log_;
  }

  TestFolder folder_;
  std::mutex mutex_;
  std::vector<std::string> log_;
};

TEST_F(Mlflow, SendsARunInOrderAndLeavesNoFiles) {
  TestHttpServer server(&answer_as_mlflow);
  MlflowTracker tracker(spools(), options(server.url()));
  tracker.store_config({{"lr", 0.1}, {"model", {{"depth", 3}}}});
  tracker.log({{"loss", 0.5}, {"bad name!", std::nan("")}}, 4);
  tracker.log_images({{"samples", {1, 1, 1, 1, {7}}}}, 4);
  tracker.finish(RunStatus::kFailed);
  EXPECT_EQ(bodies(server, "experiments/create").at(0), (json{{"name", "demo"}}));
  json params = json::array();
  json metrics = json::array();
  for (const json& batch : bodies(server, "log-batch")) {
    EXPECT_EQ(batch.at("run_id"), "r1");
    for (const json& param : batch.value("params", json::array())) {
      params.push_back(param);
    }
    for (json metric : batch.value("metrics", json::array())) {
      metric.erase("timestamp");
      metrics.push_back(metric);
    }
  }
  EXPECT_EQ(
      params, (json{{{"key", "lr"}, {"value", "0.1"}}, {{"key", "model.depth"}, {"value", "3"}}}));
  EXPECT_EQ(
      metrics,
      (json{
          {{"key", "bad name_"}, {"value", "NaN"}, {"step", 4}},
          {{"key", "loss"}, {"value", 0.5}, {"step", 4}}}));
  EXPECT_EQ(bodies(server, "runs/update").back().at("status"), "FAILED");
  std::vector<std::string> lines;
  for (const Request& request : server.requests()) {
    lines.push_back(request.line);
  }
  EXPECT_THAT(
      lines,
      Contains("PUT /api/2.0/mlflow-artifacts/artifacts/7/r1/artifacts/images/samples/4_0.png "
               "HTTP/1.1"));
  EXPECT_TRUE(std::filesystem::is_empty(spools()));
  EXPECT_THAT(logged(), IsEmpty());
}

TEST_F(Mlflow, NamesTheLastTablesInATag) {
  constexpr int kTables = 100;
  TestHttpServer server(&answer_as_mlflow);
  MlflowTracker tracker(spools(), options(server.url()));
  for (int step = 0; step < kTables; ++step) {
    tracker.log_tables({{"val/answers", {{"text"}, {{"yes"}}}}}, step);
  }
  tracker.log_tables({{"val/answers", {{"text"}, {{"no"}}}}}, kTables - 1);  // The same step again.
  tracker.finish();
  std::string tag;
  for (const json& batch : bodies(server, "runs/log-batch")) {
    for (const json& entry : batch.value("tags", json::array())) {
      tag = entry.at("key") == "mlflow.loggedArtifacts" ? entry.at("value") : json(tag);
    }
  }
  EXPECT_LE(tag.size(), 5000U);
  const json tables = json::parse(tag);
  ASSERT_GT(tables.size(), 80U);
  EXPECT_EQ(tables.back().dump(), R"({"path":"tables/val/answers/99.json","type":"table"})");
  EXPECT_EQ(tables[tables.size() - 2].at("path"), "tables/val/answers/98.json");
}

TEST_F(Mlflow, AnExperimentThatAnotherProcessCreatesMeanwhileIsUsed) {
  std::atomic<int> lookups{0};
  TestHttpServer server([&](const Request& request) {
    if (request.line.find("experiments/create") != std::string::npos) {
      return Answer{400, R"({"error_code":"RESOURCE_ALREADY_EXISTS","message":"exists"})"};
    }
    if (request.line.find("get-by-name") != std::string::npos && ++lookups > 1) {
      return Answer{200, R"({"experiment":{"experiment_id":"9"}})"};
    }
    return answer_as_mlflow(request);
  });
  MlflowTracker(spools(), options(server.url())).finish();
  EXPECT_EQ(bodies(server, "runs/create").at(0).at("experiment_id"), "9");
  EXPECT_THAT(logged(), IsEmpty());
}

TEST_F(Mlflow, JoinsLinesToRequestsWithinTheServersLimits) {
  std::atomic<bool> away{true};
  TestHttpServer server([&](const Request& request) {
    return away ? Answer{503, "away"} : answer_as_mlflow(request);
  });
  MlflowTracker tracker(spools(), options(server.url()));
  for (int step = 0; step < 2500; ++step) {
    tracker.log({{"loss", 0.5}}, step);
  }
  away = false;
  tracker.finish();
  size_t metrics = 0;
  for (const json& batch : bodies(server, "log-batch")) {
    EXPECT_LE(batch.at("metrics").size(), 1000U);
    metrics += batch.at("metrics").size();
  }
  EXPECT_EQ(metrics, 2500U);
  EXPECT_LE(bodies(server, "log-batch").size(), 8U);
}

TEST_F(Mlflow, AnAbsentServerStopsNothingAndALaterRunSendsTheRest) {
  std::string uri;
  int port = 0;
  {
    TestHttpServer server(&answer_as_mlflow);  // Ends at once: nothing listens on its port then.
    uri = server.url();
    port = server.port();
  }
  {
    MlflowTracker tracker(spools(), options(uri, 0.01));
    tracker.log({{"loss", 0.5}}, 1);
    tracker.finish();
  }
  EXPECT_THAT(logged(), Contains(HasSubstr("the next run with the same folder sends them from")));
  TestHttpServer server(&answer_as_mlflow, port);
  MlflowTracker tracker(spools(), options(uri));
  while (bodies(server, "runs/update").empty()) {
    ::usleep(5000);
  }
  EXPECT_EQ(bodies(server, "log-batch").at(0).at("metrics").at(0).at("value"), 0.5);
  tracker.finish();
}

TEST_F(Mlflow, TheValuesOfAKilledProcessAreSentByTheNext) {
  TestHttpServer server(&answer_as_mlflow);
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    MlflowTracker tracker(spools(), options(server.url()));
    for (int step = 0; step < 100; ++step) {
      tracker.log({{"loss", 0.5}}, step);
    }
    ::kill(::getpid(), SIGKILL);
  }
  ASSERT_EQ(::waitpid(child, nullptr, 0), child);
  MlflowTracker tracker(spools(), options(server.url()));
  std::set<int64_t> steps;
  while (steps.size() < 100) {
    for (const json& batch : bodies(server, "log-batch")) {
      for (const json& metric : batch.at("metrics")) {
        steps.insert(metric.at("step").get<int64_t>());
      }
    }
  }
  tracker.finish();
}

TEST_F(Mlflow, ARefusedValueIsKeptAndDoesNotStopTheOthers) {
  TestHttpServer server([](const Request& request) {
    return request.body.find("\"key\":\"bad\"") != std::string::npos
               ? Answer{400, R"({"message":"I do not like it"})"}
               : answer_as_mlflow(request);
  });
  MlflowTracker tracker(spools(), options(server.url()));
  tracker.log({{"good", 1}}, 1);
  tracker.log({{"bad", 2}}, 2);
  tracker.log({{"good", 3}}, 3);
  tracker.finish();
  std::vector<double> sent;
  for (const json& batch : bodies(server, "log-batch")) {
    if (batch.dump().find("\"bad\"") == std::string::npos) {
      for (const json& metric : batch.at("metrics")) {
        sent.push_back(metric.at("value").get<double>());
      }
    }
  }
  EXPECT_THAT(sent, ElementsAre(1, 3));
  EXPECT_THAT(
      logged(),
      Contains(HasSubstr("refuses values; it answers runs/log-batch with status "
                         "400: \"I do not like it\"")));
  std::vector<std::filesystem::path> left;
  for (const auto& entry : std::filesystem::directory_iterator(spools())) {
    left.push_back(entry.path());
  }
  ASSERT_THAT(left, SizeIs(1));
  EXPECT_THAT(left[0].string(), HasSubstr(".refused.jsonl"));
  EXPECT_THAT(contents(left[0]), HasSubstr("\"key\":\"bad\""));
}

TEST_F(Mlflow, RefusesWhatIsNoServer) {
  ::unsetenv("MLFLOW_TRACKING_URI");
  for (const char* uri : {"", "sqlite:///a.db", "./mlruns"}) {
    EXPECT_THAT(
        [&] { MlflowTracker(spools(), options(uri)); },
        ThrowsMessage<ConfigError>(HasSubstr("expected http:// or https://")));
  }
  EXPECT_THAT(
      [&] { MlflowTracker(spools(), options("http://me:pw@host")); },
      ThrowsMessage<ConfigError>(HasSubstr("MLFLOW_TRACKING_PASSWORD")));
}

}  // namespace
}  // namespace lockstep::tracking
