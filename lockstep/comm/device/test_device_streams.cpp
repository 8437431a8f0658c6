// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/device/test_device_streams.h"

#include <deque>
#include <map>
#include <mutex>
#include <utility>

namespace lockstep::test_streams {
namespace {

struct Mark {
  c10::Stream stream;
  int64_t enqueued = 0;  ///< Work items enqueued on the stream before.
};

struct Queue {
  int64_t done = 0;
  std::deque<std::function<void()>> works = {};
};

std::mutex mutex;  // Protects all below.
std::map<c10::StreamId, Queue> queues;
c10::StreamId next_stream = 1;
bool held = false;

thread_local std::map<at::DeviceIndex, c10::StreamId> current_streams;

void run_until(Queue& queue, int64_t enqueued) {
  for (; queue.done < enqueued && !queue.works.empty(); ++queue.done) {
    queue.works.front()();
    queue.works.pop_front();
  }
}

int64_t enqueued_on(const Queue& queue) {
  return queue.done + static_cast<int64_t>(queue.works.size());
}

}  // namespace

c10::Stream current(at::Device device) {
  return c10::Stream(c10::Stream::UNSAFE, device, current_streams[device.index()]);
}

c10::Stream exchange(c10::Stream stream) {
  const c10::Stream before = current(stream.device());
  current_streams[stream.device_index()] = stream.id();
  return before;
}

c10::Stream from_pool(at::Device device) {
  const std::lock_guard lock(mutex);
  return c10::Stream(c10::Stream::UNSAFE, device, next_stream++);
}

void enqueue(c10::Stream stream, std::function<void()> work) {
  const std::lock_guard lock(mutex);
  Queue& queue = queues[stream.id()];
  queue.works.push_back(std::move(work));
  if (!held || stream.id() == 0) {
    run_until(queue, enqueued_on(queue));
  }
}

void record(void** event, c10::Stream stream) {
  const std::lock_guard lock(mutex);
  destroy(*event);
  *event = new Mark{.stream = stream, .enqueued = enqueued_on(queues[stream.id()])};
}

void destroy(void* event) noexcept {
  delete static_cast<Mark*>(event);
}

void wait_for(void* event) {
  const std::lock_guard lock(mutex);
  const auto* const mark = static_cast<Mark*>(event);
  run_until(queues[mark->stream.id()], mark->enqueued);
}

bool is_done(void* event) {
  const std::lock_guard lock(mutex);
  const auto* const mark = static_cast<Mark*>(event);
  return queues[mark->stream.id()].done >= mark->enqueued;
}

void wait_for(c10::Stream stream) {
  const std::lock_guard lock(mutex);
  Queue& queue = queues[stream.id()];
  run_until(queue, enqueued_on(queue));
}

void hold(bool hold) {
  const std::lock_guard lock(mutex);
  held = hold;
  if (!hold) {
    for (auto& [id, queue] : queues) {
      run_until(queue, enqueued_on(queue));
    }
  }
}

}  // namespace lockstep::test_streams
