// SPDX-License-Identifier: Apache-2.0
#include "lockstep/accelerator/training_state/import_accelerate.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <sys/wait.h>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/Functions.h>
#include <c10/core/GradMode.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include "lockstep/base/error.h"
#include "lockstep/base/test_errors.h"
#include "lockstep/base/text/shell.h"
#include "lockstep/checkpoint/weights/load_model.h"
#include "lockstep/checkpoint/weights/safetensors.h"
#include "lockstep/optim/rules/adam.h"
#include "lockstep/optim/rules/sgd.h"
#include "lockstep/optim/state/optimizer_state.h"
#include "lockstep/storage/test_files.h"

namespace lockstep::internal {
namespace {

namespace fs = std::filesystem;
namespace torch_optim = torch::optim;
using nlohmann::json;
using storage::SafetensorsMap;
using storage::write_bytes;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::ThrowsMessage;

const fs::path kGolden = LOCKSTEP_SOURCE_DIR "/tests/golden/accelerate_state";

/// A folder of make_accelerate_state.py as it is once the command was run in it.
class Folder {
 public:
  explicit Folder(const std::string& name, bool converted = true) {
    for (const auto& entry : fs::directory_iterator(kGolden / name)) {
      if (entry.is_regular_file() && entry.path().filename() != "after.safetensors") {
        fs::copy(entry.path(), path());
      }
    }
    write_bytes(path() / "random_states_0.pkl", "never read");
    if (converted) {
      fs::copy(kGolden / name / "converted", path());
    }
  }
  fs::path path() const { return folder_.path(); }
  void replace_in(const std::string& file, const std::string& what, const std::string& with) {
    std::string text = storage::read_bytes(path() / file);
    const size_t at = text.find(what);
    ASSERT_NE(at, std::string::npos) << what;
    write_bytes(path() / file, text.replace(at, what.size(), with));
  }

 private:
  TestFolder folder_;
};

/// The model of make_accelerate_state.py, with other values.
struct AccelerateNet {
  NamedTensors parameters = {
      {"fc.weight", at::zeros({4, 3}).requires_grad_()},
      {"fc.bias", at::zeros({4}).requires_grad_()},
      {"norm.weight", at::zeros({4}).requires_grad_()},
      {"norm.bias", at::zeros({4}).requires_grad_()},
      {"out.weight", at::zeros({2, 4}).requires_grad_()},
      {"out.bias", at::zeros({2}).requires_grad_()}};
  NamedTensors buffers = {
      {"norm.running_mean", at::zeros({4})},
      {"norm.running_var", at::zeros({4})},
      {"norm.num_batches_tracked", at::zeros({}, at::kLong)}};

  at::Tensor operator[](const std::string& name) const {
    for (const NamedTensor& item : parameters) {
      if (item.name == name) {
        return item.tensor;
      }
    }
    throw std::out_of_range(name);
  }
  std::vector<at::Tensor> all() const {
    std::vector<at::Tensor> tensors;
    for (const NamedTensor& item : parameters) {
      tensors.push_back(item.tensor);
    }
    return tensors;
  }
  /// Groups of SGD's case.
  std::array<std::vector<at::Tensor>, 2> groups() const {
    const AccelerateNet& net = *this;
    return {{
        {net["fc.weight"], net["out.weight"]},
        {net["fc.bias"], net["out.bias"], net["norm.weight"], net["norm.bias"]},
    }};
  }
  std::string name_of(const at::Tensor& tensor) const {
    for (const NamedTensor& item : parameters) {
      if (item.tensor.is_same(tensor)) {
        return item.name;
      }
    }
    throw std::out_of_range("no parameter of the net");
  }
};

using OptimizerPointer = std::unique_ptr<torch_optim::Optimizer>;

struct Case {
  const char* folder;
  const char* name;
  std::function<OptimizerPointer(const AccelerateNet&)> make;
};

template <typename Type, typename Options>
Case whole(const char* folder, const char* name, Options options) {
  return {folder, name, [options](const AccelerateNet& net) {
            return std::make_unique<Type>(net.all(), options);
          }};
}

const Case kCases[] = {
    whole<torch_optim::Adam>("adam", "Adam", torch_optim::AdamOptions(1)),
    whole<torch_optim::AdamW>("adamw", "AdamW", torch_optim::AdamWOptions(1)),
    whole<optim::Adam>("adam", "OurAdam", optim::AdamOptions{.lr = 1}),
    whole<optim::AdamW>("adamw", "OurAdamW", optim::AdamWOptions{.lr = 1}),
    {"sgd",
     "SGD",
     [](const AccelerateNet& net) -> OptimizerPointer {
       const auto groups = net.groups();
       return std::make_unique<torch_optim::SGD>(
           std::vector<torch_optim::OptimizerParamGroup>{
               torch_optim::OptimizerParamGroup(groups[0]),
               torch_optim::OptimizerParamGroup(groups[1])},
           torch_optim::SGDOptions(1));
     }},
    {"sgd", "OurSGD", [](const AccelerateNet& net) -> OptimizerPointer {
       const auto groups = net.groups();
       return std::make_unique<optim::SGD>(std::vector<optim::SGD::Group>{
           {groups[0], optim::SGDOptions{.lr = 1}}, {groups[1], optim::SGDOptions{.lr = 1}}});
     }}};

ImportTarget target_of(const AccelerateNet& net, torch_optim::Optimizer& optimizer) {
  ImportTarget::Optimizer target{.parameters = {}, .settings = optimizer_settings(optimizer)};
  for (auto& group : optimizer.param_groups()) {
    auto& names = target.parameters.emplace_back();
    for (const at::Tensor& parameter : group.params()) {
      names.push_back(net.name_of(parameter));
    }
  }
  const json schedule{
      {"steps", 0}, {"counted", 1}, {"base_rates", {{1.0}}}, {"schedule", "some name"}};
  return {.models = 1, .optimizers = {target}, .schedulers = {schedule}};
}

json plateau_state() {
  return {{"steps", 0}, {"counted", 1}, {"base_rates", {{1.0, 1.0}}}, {"plateau", json::object()}};
}

void update(const AccelerateNet& net, torch_optim::Optimizer& optimizer, int number) {
  {
    const c10::AutoGradMode no_grad(false);
    for (const NamedTensor& item : net.parameters) {
      item.tensor.mutable_grad() = item.tensor.detach() * 0.5 + 0.125 * number;
    }
  }
  optimizer.step();
}

class ImportAccelerate : public testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(Optimizers, ImportAccelerate, testing::ValuesIn(kCases), [](auto& test) {
  return test.param.name;
});

TEST_P(ImportAccelerate, ContinuesAsPythonDid) {
  const Folder folder(GetParam().folder);
  const AccelerateNet net;
  const OptimizerPointer optimizer = GetParam().make(net);
  ImportTarget target = target_of(net, *optimizer);
  if (GetParam().folder == std::string("sgd")) {
    target.schedulers = {plateau_state()};
  }
  const ImportedState state = import_accelerate(folder.path(), target);

  NamedTensors model = net.parameters;
  model.insert(model.end(), net.buffers.begin(), net.buffers.end());
  checkpoint::load_checkpoint_in_model(model, state.models.at(0));
  const auto name_of = [&](const at::Tensor& parameter) { return net.name_of(parameter); };
  const ImportedState::Optimizer& imported = state.optimizers.at(0);
  check_optimizer(*optimizer, name_of, imported.tensors, imported.settings, imported.path)();
  for (int number = 2; number < 4; ++number) {
    update(net, *optimizer, number);
  }
  const SafetensorsMap after(kGolden / GetParam().folder / "after.safetensors");
  for (const NamedTensor& item : net.parameters) {
    const at::Tensor expected = checkpoint::tensor_of(after, item.name);
    // Other kernels than Python's round in another order.
    EXPECT_TRUE(at::allclose(item.tensor, expected, 1e-5, 1e-6))
        << item.name << item.tensor << expected;
  }
}

TEST(ImportAccelerateState, CountsUpdatesAndStepsOfTheSchedule) {
  const AccelerateNet net;
  const OptimizerPointer adam = kCases[0].make(net);
  const Folder folder("adam");
  const ImportedState state = import_accelerate(folder.path(), target_of(net, *adam));
  EXPECT_EQ(state.optimizers.at(0).steps, 2);
  EXPECT_EQ(state.optimizers.at(0).settings["param_groups"][0]["lr"], 0.025);
  EXPECT_EQ(
      state.schedulers.at(0),
      (json{{"steps", 2}, {"counted", 3}, {"base_rates", {{0.1}}}, {"schedule", "some name"}}));
  EXPECT_THAT(state.not_imported, ElementsAre("random_states_0.pkl"));
}

TEST(ImportAccelerateState, ImportsAPlateau) {
  const AccelerateNet net;
  const OptimizerPointer sgd = kCases[4].make(net);
  Folder folder("sgd");
  ImportTarget target = target_of(net, *sgd);
  target.schedulers = {plateau_state()};
  json expected = plateau_state();
  expected["steps"] = 2;
  expected["plateau"] = {
      {"lr", {0.010000000000000002, 0.020000000000000004}},
      {"best", 1.0},
      {"bad_steps", 0},
      {"cooldown_left", 0}};
  EXPECT_EQ(import_accelerate(folder.path(), target).schedulers.at(0), expected);
  EXPECT_THAT(
      [&] { import_accelerate(folder.path(), target_of(net, *sgd)); },
      ThrowsMessage<CheckpointError>(HasSubstr("prepared another kind of schedule")));
}

/// AdamW's case was made with named_parameters().
TEST(ImportAccelerateState, MatchesByNameIfPythonSavedNames) {
  const AccelerateNet net;
  const OptimizerPointer optimizer = kCases[1].make(net);
  const Folder folder("adamw");
  ImportTarget target = target_of(net, *optimizer);
  const NamedTensors in_order = import_accelerate(folder.path(), target).optimizers[0].tensors;
  std::reverse(
      target.optimizers[0].parameters[0].begin(), target.optimizers[0].parameters[0].end());
  const NamedTensors reversed = import_accelerate(folder.path(), target).optimizers[0].tensors;
  ASSERT_EQ(in_order.size(), 24U);
  for (size_t i = 0; i < in_order.size(); ++i) {
    EXPECT_EQ(in_order[i].name, reversed[i].name);
  }
}

TEST(ImportAccelerateState, TellsItsFoldersFromOthers) {
  Folder folder("adam", /*converted=*/false);
  EXPECT_TRUE(is_accelerate_folder(folder.path()));
  EXPECT_FALSE(is_accelerate_folder(folder.path() / "model.safetensors"));
  EXPECT_FALSE(is_accelerate_folder(folder.path() / "nothing"));
  write_bytes(folder.path() / "manifest.json", "{}");
  EXPECT_FALSE(is_accelerate_folder(folder.path()));
}

TEST(ImportAccelerateState, RefusesAnotherProgramsState) {
  const AccelerateNet net;
  const OptimizerPointer adam = kCases[0].make(net);
  const OptimizerPointer adamw = kCases[1].make(net);
  const OptimizerPointer sgd = kCases[4].make(net);
  const auto refuses = [&](const Folder& folder, const ImportTarget& target, const char* why) {
    EXPECT_THAT(
        [&] { import_accelerate(folder.path(), target); },
        ThrowsMessage<CheckpointError>(HasSubstr(why)));
  };
  Folder folder("adam");
  ImportTarget two = target_of(net, *adam);
  two.models = 2;
  refuses(folder, two, "holds 1 models, this program prepared 2");
  two.models = 1;
  two.optimizers.push_back(two.optimizers.front());
  refuses(folder, two, "holds 1 optimizers, this program prepared 2");
  two.optimizers.clear();
  refuses(folder, two, "holds 1 optimizers, this program prepared 0");
  two = target_of(net, *adam);
  two.schedulers.clear();
  refuses(folder, two, "holds 1 schedulers, this program prepared 0");

  refuses(
      folder, target_of(net, *adamw), "holds the state of Adam; this program's optimizer is AdamW");
  refuses(folder, target_of(net, *sgd), "holds 1 parameter groups; this program's optimizer has 2");
  ImportTarget fewer = target_of(net, *adam);
  fewer.optimizers[0].parameters[0].pop_back();
  refuses(folder, fewer, "holds 6 parameters in group 0; this program's optimizer has 5 there");

  folder.replace_in("optimizer.json", "[0, 1, 2", "[0, 1, 9");
  refuses(folder, target_of(net, *adam), "numbers its parameters in an unknown order");
  Folder none("adam");
  none.replace_in("optimizer.json", "{", "[{");
  refuses(none, target_of(net, *adam), "optimizer.json");
  Folder damaged("adam");
  damaged.replace_in("optimizer.safetensors", "5.exp_avg\"", "x.exp_avg\"");
  refuses(damaged, target_of(net, *adam), "belongs to no parameter; expected 0 to 6");
}

TEST(ImportAccelerateState, KeepsAnOptionThatThisProgramsOptimizerLacksUnlessItIsOff) {
  const AccelerateNet net;
  const OptimizerPointer adam = kCases[0].make(net);
  Folder folder("adam");
  folder.replace_in("optimizer.json", "\"maximize\": false", "\"maximize\": true");
  const ImportedState state = import_accelerate(folder.path(), target_of(net, *adam));
  EXPECT_THAT(
      [&] {
        check_optimizer(
            *adam,
            [&](const at::Tensor& parameter) { return net.name_of(parameter); },
            state.optimizers[0].tensors,
            state.optimizers[0].settings,
            state.optimizers[0].path);
      },
      ThrowsMessage<CheckpointError>(HasSubstr("an option maximize")));
}

/// What a shell prints, and its exit code.
std::pair<std::string, int> shell(const std::string& command) {
  std::string output;
  FILE* pipe = ::popen((command + " 2>&1").c_str(), "r");
  std::array<char, 256> buffer{};
  while (std::fgets(buffer.data(), buffer.size(), pipe) != nullptr) {
    output += buffer.data();
  }
  const int status = ::pclose(pipe);
  return {output, WIFEXITED(status) ? WEXITSTATUS(status) : -1};
}

std::string import_error(const fs::path& folder, const ImportTarget& target) {
  return error_of<CheckpointError>([&] { import_accelerate(folder, target); });
}

TEST(ImportAccelerateState, NeverReadsAPickleAndSaysHowToConvertIt) {
  const AccelerateNet net;
  const OptimizerPointer adam = kCases[0].make(net);
  const Folder folder("adam", /*converted=*/false);
  EXPECT_THAT(
      import_error(folder.path(), target_of(net, *adam)),
      AllOf(
          HasSubstr((folder.path() / "optimizer.bin").string()),
          HasSubstr("never read because reading one runs code in it"),
          HasSubstr("python -c '"),
          HasSubstr("weights_only=True")));
}

/// What is told to be run.
std::string command_in(const std::string& message) {
  const size_t begin = message.find("python -c ");
  const size_t end = message.rfind('\'') + 1;
  return begin == std::string::npos ? "" : message.substr(begin + 6, end - begin - 6);
}

bool python_has(const std::string& modules) {
  const std::string python = LOCKSTEP_PYTHON;
  return !python.empty() && shell(python + " -c 'import " + modules + "'").second == 0;
}

TEST(ImportAccelerateState, ThePrintedCommandsConvertAFolderWithPickledWeights) {
  if (!python_has("torch, safetensors")) {
    GTEST_SKIP() << "LOCKSTEP_PYTHON names no Python that has torch and safetensors";
  }
  const std::string python = LOCKSTEP_PYTHON;
  const AccelerateNet net;
  const OptimizerPointer adam = kCases[0].make(net);
  const Folder original("adam", /*converted=*/false);
  const TestFolder parent;
  const fs::path folder = parent.path() / "it's [a] \"folder\" $HOME";
  fs::copy(original.path(), folder);
  // As Accelerate's save_state(safe_serialization=False) has it.
  const auto [made, ok] = shell(
      python +
      " -c 'import sys, torch; from safetensors.torch import load_file; "
      "torch.save(load_file(sys.argv[1]), sys.argv[2])' " +
      shell_quoted(
          {(kGolden / "adam" / "model.safetensors").string(),
           (folder / "pytorch_model.bin").string()}));
  ASSERT_EQ(ok, 0) << made;
  fs::remove(folder / "model.safetensors");
  int commands = 0;
  for (std::string message = import_error(folder, target_of(net, *adam)); message != "no error";
       message = import_error(folder, target_of(net, *adam))) {
    ASSERT_LT(commands++, 2) << message;
    const auto [output, code] = shell(python + command_in(message));
    ASSERT_EQ(code, 0) << output << message;
  }
  EXPECT_EQ(commands, 2) << "one for the weights, one for the rest";
  const ImportedState state = import_accelerate(folder, target_of(net, *adam));
  EXPECT_EQ(state.optimizers[0].steps, 2);
  NamedTensors model = net.parameters;
  model.insert(model.end(), net.buffers.begin(), net.buffers.end());
  checkpoint::load_checkpoint_in_model(model, state.models.at(0));
  const SafetensorsMap saved(kGolden / "adam" / "model.safetensors");
  for (const NamedTensor& item : net.parameters) {
    EXPECT_TRUE(at::equal(item.tensor, checkpoint::tensor_of(saved, item.name))) << item.name;
  }
}

/// Run as it is told to the user, in a folder whose name needs all of the quoting.
TEST(ImportAccelerateState, TheCommandConvertsAllOfAFolder) {
  if (!python_has("torch, safetensors")) {
    GTEST_SKIP() << "LOCKSTEP_PYTHON names no Python that has torch and safetensors";
  }
  const std::string python = LOCKSTEP_PYTHON;
  const AccelerateNet net;
  const OptimizerPointer adamw = kCases[1].make(net);
  const Folder original("adamw", /*converted=*/false);
  const TestFolder parent;
  const fs::path folder = parent.path() / "it's [a] \"folder\" $HOME";
  fs::copy(original.path(), folder);
  const std::string message = import_error(folder, target_of(net, *adamw));
  const std::string command = command_in(message);
  ASSERT_NE(command, "") << message;
  const auto [output, code] = shell(python + command);
  ASSERT_EQ(code, 0) << output << command;
  for (const std::string name : {"optimizer.json", "optimizer.safetensors", "scheduler.json"}) {
    EXPECT_EQ(
        storage::read_bytes(folder / name),
        storage::read_bytes(kGolden / "adamw" / "converted" / name))
        << name;
  }
  EXPECT_EQ(import_accelerate(folder, target_of(net, *adamw)).optimizers[0].tensors.size(), 24U);
}

}  // namespace
}  // namespace lockstep::internal
