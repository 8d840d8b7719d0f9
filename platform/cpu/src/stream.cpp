// SPDX-FileCopyrightText: hipmla contributors
// SPDX-License-Identifier: MIT

// Streams and events. A stream is a queue of tasks with a thread that runs them in order.

#include <chrono>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "runtime.h"

namespace {

using hip_cpu::internal::report;
using hip_cpu::internal::report_pending_fault;

// When a task is done. Guarded by StreamTable::mutex.
struct Completion {
  bool done = false;
  std::chrono::steady_clock::time_point time;
};
using CompletionPtr = std::shared_ptr<Completion>;

struct Task {
  std::function<void()> run;         // may be empty
  std::vector<CompletionPtr> waits;  // of other streams; all must be done before run
  CompletionPtr completion;
};

}  // namespace

struct ihipStream_t {
  bool blocking = true;   // takes part in the null stream's order
  bool stopping = false;  // the thread ends when the queue is empty
  std::deque<Task> tasks;
  CompletionPtr last;  // of the newest task; null if there was none
  std::thread thread;
};

struct ihipEvent_t {
  bool has_time = true;
  CompletionPtr recorded;  // null until recorded
};

namespace {

bool is_pending(const CompletionPtr& completion) { return completion && !completion->done; }

// All streams and events of the process. Lives as long as the process, as its threads may.
struct StreamTable {
  std::mutex mutex;
  std::condition_variable changed;  // a task was queued, or is done
  std::set<ihipStream_t*> streams;  // without the null stream
  std::set<ihipEvent_t*> events;
  ihipStream_t null_stream;

  static StreamTable& instance() {
    static auto* table = [] {
      auto* made = new StreamTable;
      made->null_stream.thread = std::thread([made] { made->serve(&made->null_stream); });
      return made;
    }();
    return *table;
  }

  // The functions below are called with the mutex held.

  ihipStream_t* find(hipStream_t stream) {
    if (stream == nullptr) return &null_stream;
    return streams.count(stream) != 0 ? stream : nullptr;
  }

  ihipEvent_t* find(hipEvent_t event) { return events.count(event) != 0 ? event : nullptr; }

  // What a new task of the null stream waits for.
  std::vector<CompletionPtr> blocking_work() const {
    std::vector<CompletionPtr> waits;
    for (const ihipStream_t* stream : streams) {
      if (stream->blocking && is_pending(stream->last)) waits.push_back(stream->last);
    }
    return waits;
  }

  CompletionPtr add(ihipStream_t* stream, std::function<void()> run, CompletionPtr wait = nullptr) {
    Task task;
    task.run = std::move(run);
    if (stream == &null_stream) {
      task.waits = blocking_work();
    } else if (stream->blocking && is_pending(null_stream.last)) {
      task.waits.push_back(null_stream.last);
    }
    if (is_pending(wait)) task.waits.push_back(std::move(wait));
    task.completion = std::make_shared<Completion>();
    stream->last = task.completion;
    stream->tasks.push_back(std::move(task));
    changed.notify_all();
    return stream->last;
  }

  void wait_for(std::unique_lock<std::mutex>& lock, const CompletionPtr& completion) {
    if (is_pending(completion)) changed.wait(lock, [&] { return completion->done; });
  }

  void serve(ihipStream_t* stream) {
    std::unique_lock<std::mutex> lock(mutex);
    for (;;) {
      changed.wait(lock, [&] { return stream->stopping || !stream->tasks.empty(); });
      if (stream->tasks.empty()) return;
      Task task = std::move(stream->tasks.front());
      stream->tasks.pop_front();
      for (const CompletionPtr& wait : task.waits) wait_for(lock, wait);
      lock.unlock();
      if (task.run) task.run();
      task.run = nullptr;  // what the task owns is freed before anyone is told that it is done
      lock.lock();
      task.completion->done = true;
      task.completion->time = std::chrono::steady_clock::now();
      changed.notify_all();
    }
  }
};

}  // namespace

namespace hip_cpu::internal {

hipError_t enqueue(hipStream_t stream, std::function<void()> task) {
  StreamTable& table = StreamTable::instance();
  std::lock_guard<std::mutex> lock(table.mutex);
  ihipStream_t* found = table.find(stream);
  if (found == nullptr) return hipErrorInvalidHandle;
  table.add(found, std::move(task));
  return hipSuccess;
}

void wait_for_null_stream() {
  StreamTable& table = StreamTable::instance();
  std::unique_lock<std::mutex> lock(table.mutex);
  std::vector<CompletionPtr> waits = table.blocking_work();
  waits.push_back(table.null_stream.last);
  for (const CompletionPtr& wait : waits) table.wait_for(lock, wait);
}

hipError_t wait_for_stream(hipStream_t stream) {
  if (stream == nullptr) {
    wait_for_null_stream();
    return hipSuccess;
  }
  StreamTable& table = StreamTable::instance();
  std::unique_lock<std::mutex> lock(table.mutex);
  ihipStream_t* found = table.find(stream);
  if (found == nullptr) return hipErrorInvalidHandle;
  const CompletionPtr last = found->last;
  table.wait_for(lock, last);
  return hipSuccess;
}

void wait_for_all_streams() {
  StreamTable& table = StreamTable::instance();
  std::unique_lock<std::mutex> lock(table.mutex);
  std::vector<CompletionPtr> waits{table.null_stream.last};
  for (const ihipStream_t* stream : table.streams) waits.push_back(stream->last);
  for (const CompletionPtr& wait : waits) table.wait_for(lock, wait);
}

}  // namespace hip_cpu::internal

// ---- streams

hipError_t hipStreamCreateWithFlags(hipStream_t* stream, unsigned flags) {
  if (stream == nullptr || (flags & ~unsigned{hipStreamNonBlocking}) != 0) {
    return report(hipErrorInvalidValue);
  }
  StreamTable& table = StreamTable::instance();
  auto* made = new ihipStream_t;
  made->blocking = (flags & hipStreamNonBlocking) == 0;
  made->thread = std::thread([&table, made] { table.serve(made); });
  std::lock_guard<std::mutex> lock(table.mutex);
  table.streams.insert(made);
  *stream = made;
  return hipSuccess;
}

hipError_t hipStreamCreate(hipStream_t* stream) {
  return hipStreamCreateWithFlags(stream, hipStreamDefault);
}

hipError_t hipStreamCreateWithPriority(hipStream_t* stream, unsigned flags, int /*priority*/) {
  return hipStreamCreateWithFlags(stream, flags);
}

// Queued work is completed first.
hipError_t hipStreamDestroy(hipStream_t stream) {
  StreamTable& table = StreamTable::instance();
  {
    std::lock_guard<std::mutex> lock(table.mutex);
    if (stream == nullptr || table.find(stream) == nullptr) return report(hipErrorInvalidHandle);
    table.streams.erase(stream);
    stream->stopping = true;
    table.changed.notify_all();
  }
  stream->thread.join();
  delete stream;
  return hipSuccess;
}

hipError_t hipStreamSynchronize(hipStream_t stream) {
  const hipError_t error = hip_cpu::internal::wait_for_stream(stream);
  return error != hipSuccess ? report(error) : report_pending_fault();
}

hipError_t hipDeviceSynchronize() {
  hip_cpu::internal::wait_for_all_streams();
  return report_pending_fault();
}

hipError_t hipStreamQuery(hipStream_t stream) {
  StreamTable& table = StreamTable::instance();
  {
    std::lock_guard<std::mutex> lock(table.mutex);
    const ihipStream_t* found = table.find(stream);
    if (found == nullptr) return report(hipErrorInvalidHandle);
    if (is_pending(found->last)) return hipErrorNotReady;
    if (stream == nullptr && !table.blocking_work().empty()) return hipErrorNotReady;
  }
  return report_pending_fault();
}

hipError_t hipStreamWaitEvent(hipStream_t stream, hipEvent_t event, unsigned flags) {
  if (flags != 0) return report(hipErrorInvalidValue);
  StreamTable& table = StreamTable::instance();
  std::lock_guard<std::mutex> lock(table.mutex);
  ihipStream_t* found = table.find(stream);
  if (found == nullptr || table.find(event) == nullptr) return report(hipErrorInvalidHandle);
  if (is_pending(event->recorded)) table.add(found, nullptr, event->recorded);
  return hipSuccess;
}

hipError_t hipLaunchHostFunc(hipStream_t stream, hipHostFn_t function, void* user_data) {
  if (function == nullptr) return report(hipErrorInvalidValue);
  return report(hip_cpu::internal::enqueue(stream, [=] { function(user_data); }));
}

// ---- events

hipError_t hipEventCreateWithFlags(hipEvent_t* event, unsigned flags) {
  constexpr unsigned kKnownFlags = hipEventBlockingSync | hipEventDisableTiming;
  if (event == nullptr || (flags & ~kKnownFlags) != 0) return report(hipErrorInvalidValue);
  StreamTable& table = StreamTable::instance();
  auto* made = new ihipEvent_t;
  made->has_time = (flags & hipEventDisableTiming) == 0;
  std::lock_guard<std::mutex> lock(table.mutex);
  table.events.insert(made);
  *event = made;
  return hipSuccess;
}

hipError_t hipEventCreate(hipEvent_t* event) {
  return hipEventCreateWithFlags(event, hipEventDefault);
}

hipError_t hipEventRecord(hipEvent_t event, hipStream_t stream) {
  StreamTable& table = StreamTable::instance();
  std::lock_guard<std::mutex> lock(table.mutex);
  ihipStream_t* found = table.find(stream);
  if (found == nullptr || table.find(event) == nullptr) return report(hipErrorInvalidHandle);
  event->recorded = table.add(found, nullptr);
  return hipSuccess;
}

hipError_t hipEventSynchronize(hipEvent_t event) {
  StreamTable& table = StreamTable::instance();
  {
    std::unique_lock<std::mutex> lock(table.mutex);
    if (table.find(event) == nullptr) return report(hipErrorInvalidHandle);
    const CompletionPtr recorded = event->recorded;
    table.wait_for(lock, recorded);
  }
  return report_pending_fault();
}

hipError_t hipEventQuery(hipEvent_t event) {
  StreamTable& table = StreamTable::instance();
  {
    std::lock_guard<std::mutex> lock(table.mutex);
    if (table.find(event) == nullptr) return report(hipErrorInvalidHandle);
    if (is_pending(event->recorded)) return hipErrorNotReady;
  }
  return report_pending_fault();
}

hipError_t hipEventElapsedTime(float* milliseconds, hipEvent_t start, hipEvent_t stop) {
  if (milliseconds == nullptr) return report(hipErrorInvalidValue);
  StreamTable& table = StreamTable::instance();
  std::lock_guard<std::mutex> lock(table.mutex);
  for (hipEvent_t event : {start, stop}) {
    if (table.find(event) == nullptr || !event->has_time || event->recorded == nullptr) {
      return report(hipErrorInvalidHandle);
    }
  }
  if (!start->recorded->done || !stop->recorded->done) return hipErrorNotReady;
  *milliseconds =
      std::chrono::duration<float, std::milli>(stop->recorded->time - start->recorded->time)
          .count();
  return hipSuccess;
}

hipError_t hipEventDestroy(hipEvent_t event) {
  StreamTable& table = StreamTable::instance();
  std::lock_guard<std::mutex> lock(table.mutex);
  if (table.find(event) == nullptr) return report(hipErrorInvalidHandle);
  table.events.erase(event);
  delete event;
  return hipSuccess;
}
