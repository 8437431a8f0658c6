// SPDX-License-Identifier: Apache-2.0
// Kubeflow's TrainJob: the example's YAML, and its command in two pods, simulated by processes with
// the variables of Kubeflow Trainer.
#include <algorithm>
#include <csignal>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/base/env.h"
#include "lockstep/base/test_folder.h"
#include "lockstep/config/document/document.h"
#include "tests/e2e/harness/lockstep_run.h"

namespace lockstep::e2e {
namespace {

using config::Node;
using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::IsSubsetOf;

/// Returns the documents of the example, by kind.
std::map<std::string, Node> documents() {
  std::ifstream file(TRAINJOB);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  const std::string separator = "\n---\n";
  std::map<std::string, Node> all;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find(separator, begin), text.size());
    Node root =
        config::parse_document(TRAINJOB, text.substr(begin, end - begin), config::Format::kYaml)
            .root;
    const std::string kind = root.find("kind")->text;
    all.emplace(kind, std::move(root));
    begin = end + separator.size();
  }
  return all;
}

/// Returns the value at a path like "spec/rules/0/action". Fails the test without one.
Node at(const Node& root, const std::string& path) {
  const Node* node = &root;
  for (size_t begin = 0; begin <= path.size() && node != nullptr;) {
    const size_t end = std::min(path.find('/', begin), path.size());
    const std::string key = path.substr(begin, end - begin);
    const auto index = parse_integer(key);
    if (node->kind == Node::Kind::kList && index) {
      const auto item = static_cast<size_t>(*index);
      node = item < node->items.size() ? &node->items[item] : nullptr;
    } else {
      node = node->find(key);
    }
    begin = end + 1;
  }
  EXPECT_NE(node, nullptr) << path;
  return node == nullptr ? Node{} : *node;
}

std::vector<std::string> texts(const Node& list) {
  std::vector<std::string> all;
  for (const Node& item : list.items) {
    all.push_back(item.text);
  }
  return all;
}

/// Returns the paths of all values, with "*" for each index of a list.
void collect_paths(const Node& node, const std::string& path, std::set<std::string>& paths) {
  if (node.kind == Node::Kind::kMap) {
    for (const config::Entry& entry : node.entries) {
      collect_paths(entry.value, path + (path.empty() ? "" : "/") + entry.key, paths);
    }
  } else if (node.kind == Node::Kind::kList) {
    for (const Node& item : node.items) {
      collect_paths(item, path + "/*", paths);
    }
  } else {
    paths.insert(path);
  }
}

std::set<std::string> paths_of(const Node& root) {
  std::set<std::string> paths;
  collect_paths(root, "", paths);
  return paths;
}

constexpr const char* kJob = "spec/template/spec/replicatedJobs/0/template/spec/";
constexpr const char* kPod = "spec/template/spec/replicatedJobs/0/template/spec/template/spec/";

/// Returns the value after `option` in a command line.
std::string value_after(const std::vector<std::string>& words, const std::string& option) {
  const auto found = std::find(words.begin(), words.end(), option);
  return found == words.end() || found + 1 == words.end() ? "" : *(found + 1);
}

TEST(KubeflowExample, HasOnlyFieldsOfTheKubernetesApis) {
  const auto all = documents();
  ASSERT_EQ(all.size(), 3U);
  EXPECT_EQ(at(all.at("TrainJob"), "apiVersion").text, "trainer.kubeflow.org/v1alpha1");
  EXPECT_EQ(at(all.at("TrainingRuntime"), "apiVersion").text, "trainer.kubeflow.org/v1alpha1");
  // The fields in use, from the resource definitions of Kubeflow Trainer 2, JobSet and batch/v1.
  EXPECT_THAT(
      paths_of(all.at("TrainJob")),
      IsSubsetOf(std::set<std::string>{
          "apiVersion",
          "kind",
          "metadata/name",
          "spec/runtimeRef/apiGroup",
          "spec/runtimeRef/kind",
          "spec/runtimeRef/name",
          "spec/trainer/numNodes",
          "spec/trainer/numProcPerNode",
          "spec/trainer/image",
          "spec/trainer/command/*",
          "spec/trainer/args/*",
          "spec/trainer/env/*/name",
          "spec/trainer/env/*/valueFrom/secretKeyRef/name",
          "spec/trainer/env/*/valueFrom/secretKeyRef/key",
          "spec/trainer/resourcesPerNode/requests/cpu",
          "spec/trainer/resourcesPerNode/requests/memory",
          "spec/trainer/resourcesPerNode/limits/memory"}));
  const std::string job = "spec/template/spec/replicatedJobs/*/template/";
  const std::string pod = job + "spec/template/spec/";
  EXPECT_THAT(
      paths_of(all.at("TrainingRuntime")),
      IsSubsetOf(std::set<std::string>{
          "apiVersion",
          "kind",
          "metadata/name",
          "spec/mlPolicy/numNodes",
          "spec/template/spec/replicatedJobs/*/name",
          job + "metadata/labels/trainer.kubeflow.org/trainjob-ancestor-step",
          job + "spec/backoffLimit",
          job + "spec/podFailurePolicy/rules/*/action",
          job + "spec/podFailurePolicy/rules/*/onExitCodes/containerName",
          job + "spec/podFailurePolicy/rules/*/onExitCodes/operator",
          job + "spec/podFailurePolicy/rules/*/onExitCodes/values/*",
          pod + "restartPolicy",
          pod + "terminationGracePeriodSeconds",
          pod + "containers/*/name",
          pod + "containers/*/image",
          pod + "containers/*/volumeMounts/*/name",
          pod + "containers/*/volumeMounts/*/mountPath",
          pod + "volumes/*/name",
          pod + "volumes/*/persistentVolumeClaim/claimName"}));
}

TEST(KubeflowExample, ItsPartsFitTogether) {
  const auto all = documents();
  const Node& job = all.at("TrainJob");
  const Node& runtime = all.at("TrainingRuntime");
  const auto of_job = [&](const std::string& path) { return at(runtime, kJob + path); };
  const auto of_pod = [&](const std::string& path) { return at(runtime, kPod + path); };
  EXPECT_EQ(at(job, "spec/runtimeRef/name").text, at(runtime, "metadata/name").text);
  EXPECT_EQ(at(job, "spec/runtimeRef/kind").text, "TrainingRuntime");
  // Kubeflow's torch policy sets variables in the container "node" of the replicated job "node".
  EXPECT_EQ(at(runtime, "spec/mlPolicy/torch").kind, Node::Kind::kMap);
  EXPECT_EQ(at(runtime, "spec/template/spec/replicatedJobs/0/name").text, "node");
  EXPECT_EQ(of_pod("containers/0/name").text, "node");
  EXPECT_EQ(
      at(runtime, "spec/template/spec/replicatedJobs/0/template/metadata/labels")
          .find("trainer.kubeflow.org/trainjob-ancestor-step")
          ->text,
      "trainer");
  EXPECT_EQ(
      of_pod("volumes/0/persistentVolumeClaim/claimName").text,
      at(all.at("PersistentVolumeClaim"), "metadata/name").text);
  EXPECT_EQ(of_pod("volumes/0/name").text, of_pod("containers/0/volumeMounts/0/name").text);
  // Ranks that saved and left resume in new pods.
  EXPECT_EQ(of_pod("restartPolicy").text, "Never");
  EXPECT_EQ(of_job("podFailurePolicy/rules/0/action").text, "Ignore");
  EXPECT_EQ(of_job("podFailurePolicy/rules/0/onExitCodes/values/0").text, "75");
  EXPECT_EQ(of_job("podFailurePolicy/rules/0/onExitCodes/containerName").text, "node");
  EXPECT_EQ(of_job("podFailurePolicy/rules/1/action").text, "FailJob");
  EXPECT_EQ(of_job("podFailurePolicy/rules/1/onExitCodes/values/0").text, "2");
  const std::vector<std::string> command = texts(at(job, "spec/trainer/command"));
  EXPECT_LT(
      parse_integer(value_after(command, "--grace-seconds")),
      parse_integer(of_pod("terminationGracePeriodSeconds").text));
  EXPECT_EQ(at(job, "spec/trainer/env/0/name").text, "LOCKSTEP_JOB_TOKEN");
  at(job, "spec/trainer/env/0/valueFrom/secretKeyRef/name");
}

/// The pods of one TrainJob. The end of the test kills them and their ranks.
class KubeflowPods : public testing::Test {
 protected:
  /// Returns the variables that Kubeflow Trainer's torch policy sets in a pod, and the Secret's
  /// token.
  std::vector<std::string> variables(int pod) const {
    return {
        "PET_NNODES=2",
        "PET_NPROC_PER_NODE=2",
        "PET_NODE_RANK=" + std::to_string(pod),
        "PET_MASTER_ADDR=127.0.0.1",
        "PET_MASTER_PORT=" + std::to_string(port_),
        "LOCKSTEP_JOB_TOKEN=0123456789abcdef",
        "XDG_STATE_HOME=" + folder_.path().string()};
  }
  /// Runs the example's command on `program` in place of its args.
  LockstepRun& start(int pod, const std::vector<std::string>& program) {
    std::vector<std::string> words = texts(at(documents().at("TrainJob"), "spec/trainer/command"));
    EXPECT_EQ(words.front(), "lockstep");
    words.erase(words.begin());
    // The fixtures keep no checkpoints.
    std::erase(words, "--resume");
    words.insert(words.end(), program.begin(), program.end());
    pods_.push_back(std::make_unique<LockstepRun>(words, variables(pod)));
    return *pods_.back();
  }

  TestFolder folder_;
  int port_ = free_port();
  std::vector<std::unique_ptr<LockstepRun>> pods_;
};

TEST_F(KubeflowPods, TrainTogether) {
  LockstepRun& second = start(1, {WATCH_FIXTURE});
  LockstepRun& first = start(0, {WATCH_FIXTURE});
  const Outcome at_first = first.wait();
  const Outcome at_second = second.wait();
  EXPECT_EQ(at_first.code, 0) << at_first.err;
  EXPECT_EQ(at_second.code, 0) << at_second.err;
  EXPECT_THAT(at_first.out, HasSubstr("trained 4 ranks"));
}

TEST_F(KubeflowPods, AllEndWith75WhenOneIsEvicted) {
  LockstepRun& first = start(0, {LAUNCH_FIXTURE, "save"});
  LockstepRun& second = start(1, {LAUNCH_FIXTURE, "save"});
  first.await_out("ready ", 2);
  second.await_out("ready ", 2);
  second.send(SIGTERM);
  const Outcome at_second = second.wait();
  const Outcome at_first = first.wait();
  EXPECT_EQ(at_first.code, 75) << at_first.err;
  EXPECT_EQ(at_second.code, 75) << at_second.err;
  EXPECT_THAT(first.survivors(), IsEmpty());
  EXPECT_THAT(second.survivors(), IsEmpty());
}

TEST_F(KubeflowPods, AnOptionThatContradictsThemIsRefused) {
  const auto refused = [&](std::vector<std::string> options) {
    options.insert(options.begin(), "launch");
    options.insert(options.end(), {"--dry-run", "true"});
    const Outcome outcome = run_lockstep(options, variables(1));
    EXPECT_EQ(outcome.code, 2) << outcome.out;
    return outcome.err;
  };
  EXPECT_THAT(refused({"--nnodes", "3"}), HasSubstr("PET_NNODES=2 and --nnodes 3 differ"));
  EXPECT_THAT(
      refused({"-n", "4"}),
      HasSubstr("PET_NPROC_PER_NODE=2 and --nproc-per-node 4 differ; omit the option"));
  EXPECT_THAT(
      refused({"--standalone"}),
      HasSubstr("PET_NNODES=2 and --standalone contradict each other; omit the option, or unset"));
  EXPECT_THAT(
      refused({"--num-processes", "6"}),
      HasSubstr("--nproc-per-node comes from PET_NPROC_PER_NODE"));
}

TEST_F(KubeflowPods, AProgramWithoutALauncherDoesNotTrainAlone) {
  LockstepRun pod({}, variables(0), "", WATCH_FIXTURE);
  const Outcome outcome = pod.wait();
  EXPECT_EQ(outcome.code, 2);
  EXPECT_THAT(
      outcome.err,
      AllOf(
          HasSubstr("PET_NNODES=2 announces a job of several hosts"),
          HasSubstr("start the program by `lockstep launch`")));
}

TEST_F(KubeflowPods, AnInvalidValueIsNamed) {
  std::vector<std::string> with = variables(0);
  with.front() = "PET_NNODES=two";
  const Outcome outcome = run_lockstep({"launch", "--dry-run", "true"}, with);
  EXPECT_EQ(outcome.code, 2);
  EXPECT_THAT(
      outcome.err,
      AllOf(
          HasSubstr("invalid value 'two' for --nnodes; expected a number of hosts"),
          HasSubstr("--nnodes comes from PET_NNODES")));
}

// Also for a shell in which the variables of an earlier job are still set.
TEST(PyTorchJobPods, WithoutATokenTheVariableOfTheHostsIsNamed) {
  const Outcome outcome = run_lockstep(
      {"launch", "-n", "1", "true"},
      {"WORLD_SIZE=2", "RANK=0", "MASTER_ADDR=job-master-0", "MASTER_PORT=23456"});
  EXPECT_EQ(outcome.code, 2);
  EXPECT_THAT(
      outcome.err,
      AllOf(
          HasSubstr("LOCKSTEP_JOB_TOKEN is not set"), HasSubstr("--nnodes comes from WORLD_SIZE")));
}

}  // namespace
}  // namespace lockstep::e2e
