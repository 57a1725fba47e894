// A request in flight and its responses, from Triton's threads to the event loop.
#pragma once

#include <nanobind/nanobind.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "buffer.h"
#include "event.h"
#include "logprob_frames.h"
#include "stream_writer.h"
#include "stubs.h"
#include "tensor.h"
#include "text_scanner.h"
#include "trace.h"
#include "triton_api.h"

namespace triton {

namespace nb = nanobind;

using ParameterValue = std::variant<std::string, int64_t, bool, double>;

// One response as it came; its Python name is InferenceResponse.
struct ReceivedResponse {
  ReceivedResponse() { live.responses.fetch_add(1, std::memory_order_relaxed); }
  ReceivedResponse(const ReceivedResponse&) = delete;
  ReceivedResponse& operator=(const ReceivedResponse&) = delete;
  ~ReceivedResponse() { live.responses.fetch_sub(1, std::memory_order_relaxed); }

  std::vector<Tensor> outputs;
  std::vector<std::pair<std::string, std::vector<std::string>>> labels;  // of outputs, by class
  std::vector<std::pair<std::string, ParameterValue>> parameters;
  std::optional<std::pair<Code, std::string>> error;
  uint64_t relayed = 0;  // tokens, if the text has been written to the client already
  bool final = false;

  const Tensor* find(std::string_view name) const;
};

class ResponseQueue;

// A response that holds one text, maybe with the ids and the log probabilities of its tokens, and
// no error.
struct TextResponse {
  std::string_view output;
  std::string_view text;
  uint64_t tokens = 1;
  LogprobRows logprobs;
};

// A segment of a parsed stream: its text is written as far as the scanner is sure, and recorded, so
// that the parser reads all of it once the segment ends.
struct Segment {
  std::unique_ptr<TextScanner> scanner;
  size_t room;          // bytes that may still be recorded
  std::string record;   // everything that came
  uint64_t tokens = 0;  // that it was made of
};

// In a frame's constant parts: where the number of a numbered stream's event belongs. JSON has no
// such byte.
constexpr char kNumberSlot = '\x01';

// The relay of one stream: a text relay, a logprob relay if it has `logprobs`, or a segment relay
// if it is `parsed` (docs/relays.md). Responses that it takes never become Python objects: their
// texts are gathered here, and each drain writes them as frames.
struct Relay {
  std::string output;               // the name of the output that holds the text
  std::vector<std::string> around;  // a frame's constant parts; the text is a JSON string between
                                    // them. None: nothing is written. Of a numbered stream, one
                                    // part may contain kNumberSlot
  std::string text;                 // came since the last frame; valid UTF-8
  std::unique_ptr<LogprobFrames> logprobs;  // makes a frame of each response
  std::string frames;                       // that it has made since the last write
  uint64_t texts = 0;                       // that it was put together from
  bool held = false;                        // the writer takes nothing until it asks again
  bool parsed = false;                      // only segments are relayed
  std::unique_ptr<Segment> segment;         // of a parsed stream; nullptr between two of them

  // Takes a response. False if it must go the long way: nothing has changed then.
  bool add(const TextResponse& response);
  bool has_news() const { return !text.empty() || !frames.empty(); }
  // Whether the next drain writes: while the writer holds, text is gathered up to a limit, beyond
  // which it counts against the limit of the writer's buffer.
  bool due() const;
};

// Since the process began, over all streams. How many texts go into a write says whether clients
// and event loop keep up with the engine.
struct RelayCounts {
  std::atomic<uint64_t> texts{0};
  std::atomic<uint64_t> writes{0};
};
extern RelayCounts relay_counts;

// Options of a requested output.
struct OutputRequest {
  std::string name;
  std::optional<size_t> labels;  // collect the labels of classes; their dimensions begin here
  bool placed = false;           // the output goes to `memory`
  Py_buffer memory = {};
};

// The state of one request that Triton and Python share. Triton's two callbacks (the last response,
// the release of the request) keep it alive, and so does the Python stream; `queue->mutex` guards
// every member below it.
struct InFlight {
  InFlight(std::shared_ptr<ResponseQueue> response_queue, std::string model_name);

  const std::shared_ptr<ResponseQueue> queue;
  const std::string model;
  const WallClock::time_point began = WallClock::now();
  const uint64_t epoch;                                      // of `Stubs`, when the request began
  InferenceRequest* request = nullptr;                       // see `Leftovers`
  std::vector<std::unique_ptr<ReceivedResponse>> responses;  // not yet taken by Python
  std::unique_ptr<Relay> relay;
  bool queued = false;     // in the queue's list of streams to wake
  bool lost = false;       // no memory for a response: its error is still to be taken
  bool finished = false;   // the last response has arrived
  bool released = false;   // Triton reads neither the request nor its inputs any more
  bool abandoned = false;  // the consumer has left: outputs of further responses are dropped
  bool cancelled = false;  // a watched request: its end is reported to the stream
  uint64_t received = 0;   // responses so far, relayed ones too
  std::shared_ptr<InFlight> kept_by_triton;
  std::shared_ptr<InFlight> next_ready;  // the next in that list, which so needs no memory

  // Not guarded: written before Triton sees the request, released after it, with the GIL.
  std::vector<std::vector<char>> copied_inputs;
  std::vector<Py_buffer> borrowed_inputs;
  std::vector<OutputRequest> outputs;  // the memory is released after the last response
  std::string too_large;  // why an output could not be placed. Of the model's responding thread

  const OutputRequest* output(std::string_view name) const;
  bool holds_memory() const { return !borrowed_inputs.empty() || !outputs.empty(); }

  // Guarded by the GIL: the future that awaits the next response, if any.
  PyObject* stream = nullptr;  // borrowed: ResponseStream clears it when it goes
};

// Collects the responses of all the requests of one server. One wake-up of the event loop serves a
// whole burst: only the first response after a drain writes to the eventfd, and none that the
// thread sends in `run_step`.
class ResponseQueue {
 public:
  int fd() const { return event_.fd(); }
  // Without a response there was no memory for it: the stream ends with an error.
  void push(const std::shared_ptr<InFlight>& in_flight, std::unique_ptr<ReceivedResponse> response,
            bool final) noexcept;
  // False if the text must become a response: there is no relay, or earlier responses wait.
  bool push_text(const std::shared_ptr<InFlight>& in_flight, const TextResponse& response);
  // The next drain looks at the stream. Under the lock.
  void enqueue(const std::shared_ptr<InFlight>& in_flight) noexcept;
  // The same, not under the lock.
  void wake(const std::shared_ptr<InFlight>& in_flight) noexcept;
  // Writes the text of the streams that are relayed; completes the futures of those that have other
  // responses. Needs the GIL, on the thread of the event loop.
  void drain();
  // Drops the responses that no drain will take: requests and queue keep each other alive. Needs
  // the GIL.
  void clear();

  std::mutex mutex;
  Stubs stubs;

 private:
  // Drops the outputs of a response to an abandoned stream, whose backend may continue to send.
  // Keeps its error, whether it is the last one, and one sign that it came. Call with the lock
  // held.
  void push_abandoned(InFlight& in_flight, std::unique_ptr<ReceivedResponse> response);
  // Passes the recorded text of a segment on to its parser: later text is not part of it. Under the
  // lock.
  void end_segment(InFlight& in_flight) noexcept;
  // The list of streams to wake, which is empty then.
  std::shared_ptr<InFlight> take_ready() noexcept;
  // Takes the next off such a list.
  std::shared_ptr<InFlight> next_of(std::shared_ptr<InFlight>& ready) noexcept;

  Event event_;
  bool signalled_ = false;  // the event is set, or about to be read
  std::shared_ptr<InFlight> ready_;
  InFlight* last_ready_ = nullptr;
};

// The Python end of one request: takes its responses, cancels it. Used under the GIL.
class ResponseStream {
 public:
  explicit ResponseStream(std::shared_ptr<InFlight> in_flight) : in_flight_(std::move(in_flight)) {}
  ResponseStream(const ResponseStream&) = delete;
  ResponseStream& operator=(const ResponseStream&) = delete;
  ~ResponseStream();

  nb::list take();
  // The bytes of the inputs that Triton still has; nothing if the last response has arrived.
  // The caller learns from `release_waiter` when the model no longer works on the request.
  std::optional<size_t> cancel();
  bool finished() const;
  bool over() const;
  uint64_t received() const;
  // `numbers` is a Python object whose `next` is the number of the next frame, or None.
  void relay(std::string output, nb::bytes before, nb::bytes after, nb::object write,
             nb::object numbers);
  // Relays text with the log probabilities of its tokens: see `LogprobFrames`.
  void relay_logprobs(std::string output, nb::bytes before, nb::bytes between, nb::bytes after,
                      uint64_t vocabulary, size_t top, nb::object write);
  // Relays only the segments of a parsed stream, each begun by one of the two calls below it: for
  // those, `around` has the constant parts of a frame, and nothing is written if it is empty.
  // False if earlier responses wait.
  void relay_segments(std::string output, nb::object write, nb::object numbers);
  bool relay_text(const nb::list& around, std::vector<std::string> markers, size_t room);
  bool relay_json(const nb::list& around, std::string open, char position, size_t room);
  void resume_relay();
  // Writes the gathered text unless the writer holds.
  void flush_relay();
  void stop_relay();
  // For a consumer that has left: further responses are counted, not kept.
  void await_release(nb::object waiter);
  // Writes the gathered text, and completes the futures whose events have occurred.
  void wake();
  // Keeps an exception of this stream for `take`, and writes no more.
  void fail_relay(const std::exception& error);
  // Whether `take` has something to give, or to raise.
  bool has_news() const;

  nb::object waiter = nb::none();
  nb::object release_waiter = nb::none();
  nb::object write = nb::none();
  nb::object numbers = nb::none();
  nb::object failure = nb::none();  // the exception that the writer raised

 private:
  void set_relay(std::unique_ptr<Relay> relay, nb::object writer, nb::object frame_numbers);
  bool begin_segment(const nb::list& around, std::unique_ptr<TextScanner> scanner, size_t room);
  // The text gathered since the last frame, as frames; empty without such text. Under the lock.
  std::string next_frames(bool even_if_held, std::optional<uint64_t>& number);
  // The number of the next frame; nothing if the stream is not numbered. Not under the lock.
  std::optional<uint64_t> next_number() const;
  void set_next_number(const std::optional<uint64_t>& number);
  // Not under the lock: the writer may do anything. Its exception is kept for `take`.
  void write_frames(const std::string& frames);

  // The error in place of a response for which there was no memory; nullptr without such an error.
  std::unique_ptr<ReceivedResponse> take_lost();

  // Whether the writer takes no more for now.
  bool written(const std::string& frames);

  std::shared_ptr<InFlight> in_flight_;
  StreamWriter* stream_writer_ = nullptr;  // `write`, if it is one
  friend struct StreamAccess;
};

// Called with each cancel, so that the in-process backend looks at its requests without polling.
void notify_cancel();

// Calls a function on the thread of the event loop. What it answers wakes its consumers at its end,
// not in the loop's next iteration: a step of an engine so costs no eventfd and no second wake-up.
nb::object run_step(const nb::callable& function, const nb::args& arguments);

struct InferArguments {
  std::string model;
  int64_t version;
  nb::dict inputs;
  std::string request_id;
  uint64_t priority;
  uint64_t timeout_us;
  nb::object parameters;
  nb::object sequence;  // (correlation id, start, end), or None
  nb::object outputs;   // (name, dimension where classes begin or None, memory or None)
  RequestTrace* trace;  // nullptr: the request is not traced
};

// Sends a request. Throws TritonError if the core refuses it at once.
nb::object infer(triton::Server* server, ResponseAllocator* allocator,
                 const std::shared_ptr<ResponseQueue>& queue, const InferArguments& arguments);

ResponseAllocator* new_response_allocator();
void bind_inference(nb::module_& module);

}  // namespace triton
