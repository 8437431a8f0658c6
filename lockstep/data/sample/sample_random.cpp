// SPDX-License-Identifier: Apache-2.0
#include "lockstep/data/sample/sample_random.h"

#include <algorithm>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include <fmt/format.h>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include "lockstep/base/error.h"
#include "lockstep/comm/tensor/mode_key.h"

namespace lockstep::data {
namespace {

constexpr c10::DispatchKey kRandomKey = comm::kModeKey;

thread_local SampleRandomScope* g_random_scope = nullptr;

bool is_optional_generator(const c10::Type& type) {
  return type.kind() == c10::TypeKind::OptionalType &&
         type.containedType(0)->kind() == c10::TypeKind::GeneratorType;
}

/// Returns whether an argument allows a CPU generator for the operation.
bool computes_on_cpu(const c10::IValue& argument) {
  if (argument.isTensor()) {
    return !argument.toTensor().defined() || argument.toTensor().is_cpu();
  }
  return !argument.isDevice() || argument.toDevice().is_cpu();
}

void fill_in_generator(
    const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const std::vector<c10::Argument>& schema = op.schema().arguments();
  const auto arguments = std::span(*stack).last(schema.size());
  if (g_random_scope != nullptr && std::ranges::all_of(arguments, computes_on_cpu)) {
    for (size_t i = 0; i < schema.size(); ++i) {
      if (arguments[i].isNone() && is_optional_generator(*schema[i].type())) {
        arguments[i] = g_random_scope->generator();
      }
    }
  }
  op.redispatchBoxed(
      keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kRandomKey), stack);
}

bool takes_generator(const c10::OperatorHandle& op) {
  return std::ranges::any_of(op.schema().arguments(), [](const c10::Argument& argument) {
    return is_optional_generator(*argument.type());
  });
}

using RandomLibraries = std::map<std::string, torch::Library>;  // By namespace of operations.

RandomLibraries* make_random_libraries() {
  auto libraries = std::make_unique<RandomLibraries>();
  const auto library_of = [&](const std::string& name) -> torch::Library& {
    return libraries->try_emplace(name, torch::Library::IMPL, name, kRandomKey, __FILE__, __LINE__)
        .first->second;
  };
  comm::register_mode_fallthrough();
  c10::Dispatcher& dispatcher = c10::Dispatcher::singleton();
  for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
    const auto op = dispatcher.findSchema(name);
    if (op && takes_generator(*op)) {
      library_of(name.name.substr(0, name.name.find(':')))
          .impl(
              c10::toString(name).c_str(),
              torch::CppFunction::makeFromBoxedFunction<&fill_in_generator>());
    }
  }
  return libraries.release();  // Kept until the process ends, as torch keeps its libraries.
}

/// Mixes two numbers after Vigna's splitmix64: every input bit affects every bit of the result.
uint64_t mixed_in(uint64_t hash, uint64_t value) {
  uint64_t bits = (hash ^ value) + 0x9e3779b97f4a7c15;
  bits = (bits ^ (bits >> 30)) * 0xbf58476d1ce4e5b9;
  bits = (bits ^ (bits >> 27)) * 0x94d049bb133111eb;
  return bits ^ (bits >> 31);
}

uint64_t hash_of_key(const RandomKey& key, bool of_sample) {
  const uint64_t seeds = mixed_in(mixed_in(of_sample ? 1 : 2, key.seed), key.sampler_seed);
  return mixed_in(seeds, static_cast<uint64_t>(key.epoch));
}

}  // namespace

void register_sample_random() {
  try {
    [[maybe_unused]] static const RandomLibraries* const kept = make_random_libraries();
  } catch (const c10::Error& error) {
    throw ConfigError(
        "Loader",
        fmt::format(
            "random numbers of datasets need torch's dispatch key {}, which other code in this "
            "program already uses: {}",
            c10::toString(kRandomKey),
            error.what_without_backtrace()));
  }
}

SampleRandomScope::SampleRandomScope(
    const RandomKey& key, std::span<const int64_t> samples, std::span<const int64_t> visits)
    : key_guard_((register_sample_random(), kRandomKey)),
      outer_(g_random_scope),
      key_(key),
      samples_(samples),
      visits_(visits) {
  g_random_scope = this;
}

SampleRandomScope::~SampleRandomScope() {
  g_random_scope = outer_;
}

SampleRandomScope* SampleRandomScope::current() {
  return g_random_scope;
}

const at::Generator& SampleRandomScope::generator() {
  if (!seeded_) {
    // torch's CPU engine uses 32 bits of a seed.
    const uint64_t seed = (in_sample_ ? seed_of_sample() : seed_of_batch()) >> 32;
    if (generator_.defined()) {
      generator_.set_current_seed(seed);
    } else {
      generator_ = at::make_generator<at::CPUGeneratorImpl>(seed);
    }
    seeded_ = true;
  }
  return generator_;
}

uint64_t SampleRandomScope::seed_of_sample() const {
  const uint64_t hash =
      mixed_in(hash_of_key(key_, /*of_sample=*/true), static_cast<uint64_t>(sample_));
  return mixed_in(hash, static_cast<uint64_t>(visit_));
}

uint64_t SampleRandomScope::seed_of_batch() const {
  uint64_t hash = hash_of_key(key_, /*of_sample=*/false);
  for (size_t row = 0; row < samples_.size(); ++row) {
    hash = mixed_in(hash, static_cast<uint64_t>(samples_[row]));
    hash = mixed_in(hash, visits_.empty() ? 0 : static_cast<uint64_t>(visits_[row]));
  }
  return hash;
}

int64_t SampleRandomScope::visits_of(int64_t index) {
  for (size_t i = 0; i < visits_.size(); ++i) {
    const size_t row = (next_row_ + i) % visits_.size();
    if (samples_[row] == index) {
      next_row_ = row + 1;
      return visits_[row];
    }
  }
  return 0;
}

void begin_sample(int64_t index) {
  if (g_random_scope != nullptr) {
    g_random_scope->in_sample_ = true;
    g_random_scope->sample_ = index;
    g_random_scope->visit_ = g_random_scope->visits_of(index);
    g_random_scope->seeded_ = false;
  }
}

void end_samples() {
  if (g_random_scope != nullptr && g_random_scope->in_sample_) {
    g_random_scope->in_sample_ = false;
    g_random_scope->seeded_ = false;
  }
}

uint64_t random_seed() {
  at::Generator generator = g_random_scope != nullptr ? g_random_scope->generator()
                                                      : at::detail::getDefaultCPUGenerator();
  const std::scoped_lock lock(generator.mutex());
  return at::check_generator<at::CPUGeneratorImpl>(generator)->random64();
}

}  // namespace lockstep::data
