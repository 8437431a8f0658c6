// SPDX-License-Identifier: Apache-2.0
#include "lockstep/precision/autocast.h"

#include <atomic>
#include <exception>

#include <fmt/format.h>

#include <ATen/Context.h>
#include <ATen/autocast_mode.h>

#include "lockstep/base/error.h"
#include "lockstep/base/log.h"

namespace lockstep {
namespace {

namespace autocast = at::autocast;

c10::DeviceType checked(c10::DeviceType device_type, c10::ScalarType dtype, bool enabled) {
  const bool known = device_type == c10::kCPU || device_type == c10::kCUDA;
  if (!known) {
    throw ConfigError(
        "autocast",
        fmt::format(
            "this device has no autocast; got {}, expected cpu or cuda",
            c10::DeviceTypeName(device_type, /*lower_case=*/true)));
  }
  if (enabled && device_type == c10::kCUDA && !at::hasCUDA()) {
    throw ConfigError("autocast", "this host has no CUDA device; try the CPU's autocast");
  }
  if (enabled && dtype != c10::kHalf && dtype != c10::kBFloat16) {
    throw ConfigError(
        "autocast",
        fmt::format("invalid dtype; got {}, expected fp16 or bf16", c10::toString(dtype)));
  }
  return device_type;
}

void hint_once() noexcept {
  static std::atomic<bool> hinted{false};
  if (hinted.exchange(true)) {
    return;
  }
  try {
    log_warning(
        "an exception left an fp16 autocast scope on the CPU; if an operation has no fp16 kernel "
        "there (usually an LSTM), use bf16, or run it in a nested Autocast with enabled = false",
        LogAudience::kEveryRank);
  } catch (const std::exception&) {
    // The current exception is the one to report.
  }
}

}  // namespace

Autocast::Autocast(
    c10::DeviceType device_type, c10::ScalarType dtype, bool enabled, bool cache_enabled)
    : device_type_(checked(device_type, dtype, enabled)),
      is_cpu_fp16_(enabled && device_type == c10::kCPU && dtype == c10::kHalf),
      exceptions_at_start_(std::uncaught_exceptions()),
      was_enabled_(autocast::is_autocast_enabled(device_type)),
      old_dtype_(autocast::get_autocast_dtype(device_type)),
      changes_dtype_(enabled && (!was_enabled_ || old_dtype_ != dtype)),
      was_cache_enabled_(autocast::is_autocast_cache_enabled()) {
  const bool nested = autocast::increment_nesting() > 1;
  if (nested && changes_dtype_) {
    autocast::clear_cache();
  }
  autocast::set_autocast_enabled(device_type, enabled);
  if (enabled) {
    autocast::set_autocast_dtype(device_type, dtype);
  }
  autocast::set_autocast_cache_enabled(cache_enabled);
}

Autocast::~Autocast() {
  if (autocast::decrement_nesting() == 0 || changes_dtype_) {
    autocast::clear_cache();
  }
  autocast::set_autocast_enabled(device_type_, was_enabled_);
  autocast::set_autocast_dtype(device_type_, old_dtype_);
  autocast::set_autocast_cache_enabled(was_cache_enabled_);
  if (is_cpu_fp16_ && std::uncaught_exceptions() > exceptions_at_start_) {
    hint_once();
  }
}

}  // namespace lockstep
