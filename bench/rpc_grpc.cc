// SPDX-License-Identifier: Apache-2.0
// rpc_grpc: calls by gRPC between two processes, for bench/compare-rpc, which
// compiles it where gRPC is found. The generic API is used, without protobuf:
// what is timed is the transport and the call, not the encoding.
//
//     rpc_grpc ADDRESS CALLS BYTES
//
// ADDRESS is unix:PATH or HOST:PORT. Prints a line "NAME,FIGURE" for each of
// sync_us (8 bytes there and back, median), async_us (the same, by callback),
// calls (a second, 64 outstanding) and gb (BYTES there and back, GB/s each
// way).
#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace
{

const int kOutstanding = 64;

double NowUs()
{
    auto now = std::chrono::steady_clock::now().time_since_epoch();
    return std::chrono::duration<double, std::micro>(now).count();
}

// Answers one call with what it was given.
class Echo : public grpc::ServerGenericBidiReactor
{
  public:
    Echo()
    {
        StartRead(&message_);
    }
    void OnReadDone(bool ok) override
    {
        if (ok)
            StartWriteAndFinish(&message_, grpc::WriteOptions(),
                                grpc::Status::OK);
        else
            Finish(grpc::Status::OK);
    }
    void OnDone() override
    {
        delete this;
    }

  private:
    grpc::ByteBuffer message_;
};

class EchoService : public grpc::CallbackGenericService
{
    grpc::ServerGenericBidiReactor *
    CreateReactor(grpc::GenericCallbackServerContext *) override
    {
        return new Echo;
    }
};

[[noreturn]] void Serve(const std::string &address)
{
    EchoService service;
    grpc::ServerBuilder builder;

    builder.SetMaxReceiveMessageSize(-1);
    builder.SetMaxSendMessageSize(-1);
    builder.AddListeningPort(address, grpc::InsecureServerCredentials());
    builder.RegisterCallbackGenericService(&service);
    auto server = builder.BuildAndStart();
    if (server == nullptr)
        _exit(1);
    server->Wait();
    _exit(0);
}

grpc::ByteBuffer BufferOf(size_t bytes)
{
    std::string text(bytes, 'x');
    grpc::Slice slice(text);
    return grpc::ByteBuffer(&slice, 1);
}

struct Call {
    grpc::ClientContext context;
    grpc::Status status;
    grpc::ByteBuffer reply;
    std::unique_ptr<grpc::GenericClientAsyncResponseReader> reader;
};

class Client
{
  public:
    explicit Client(std::shared_ptr<grpc::Channel> channel) : stub_(channel)
    {
    }

    // Calls without waiting; Next gives it back.
    void Begin(const grpc::ByteBuffer &request)
    {
        auto *call = new Call;
        call->reader = stub_.PrepareUnaryCall(&call->context, "/rpc/echo",
                                              request, &queue_);
        call->reader->StartCall();
        call->reader->Finish(&call->reply, &call->status, call);
    }

    void Next()
    {
        void *tag;
        bool ok;
        if (!queue_.Next(&tag, &ok))
            exit(1);
        std::unique_ptr<Call> call(static_cast<Call *>(tag));
        if (!ok || !call->status.ok()) {
            fprintf(stderr, "a call failed: %s\n",
                    call->status.error_message().c_str());
            exit(1);
        }
    }

    // A call by callback, which wakes this thread.
    void ByCallback(const grpc::ByteBuffer &request)
    {
        grpc::ClientContext context;
        grpc::ByteBuffer reply;
        std::mutex lock;
        std::condition_variable changed;
        bool done = false;

        stub_.UnaryCall(&context, "/rpc/echo", grpc::StubOptions(), &request,
                        &reply, [&](grpc::Status status) {
                            std::lock_guard<std::mutex> hold(lock);
                            if (!status.ok())
                                exit(1);
                            done = true;
                            changed.notify_one();
                        });
        std::unique_lock<std::mutex> hold(lock);
        changed.wait(hold, [&] { return done; });
    }

  private:
    grpc::GenericStub stub_;
    grpc::CompletionQueue queue_;
};

template <class Body> double MedianUs(int count, Body body)
{
    std::vector<double> took;
    for (int i = 0; i < count; i++) {
        double began = NowUs();
        body();
        took.push_back(NowUs() - began);
    }
    std::sort(took.begin(), took.end());
    return took[took.size() / 2];
}

double CallsASecond(Client &client, const grpc::ByteBuffer &small, int calls)
{
    double began = NowUs();
    for (int i = 0; i < kOutstanding; i++)
        client.Begin(small);
    for (int i = kOutstanding; i < calls; i++) {
        client.Next();
        client.Begin(small);
    }
    for (int i = 0; i < kOutstanding; i++)
        client.Next();
    return std::max(calls, kOutstanding) / (NowUs() - began) * 1e6;
}

} // namespace

int main(int argc, char **argv)
{
    std::string address = argc > 1 ? argv[1] : "unix:rpc_grpc.sock";
    int calls = argc > 2 ? atoi(argv[2]) : 2000;
    size_t bytes = argc > 3 ? strtoull(argv[3], nullptr, 10) : 64u << 20;
    pid_t server = fork();

    if (server == 0)
        Serve(address);
    grpc::ChannelArguments limits;
    limits.SetMaxReceiveMessageSize(-1);
    limits.SetMaxSendMessageSize(-1);
    auto channel = grpc::CreateCustomChannel(
        address, grpc::InsecureChannelCredentials(), limits);
    bool there = channel->WaitForConnected(std::chrono::system_clock::now() +
                                           std::chrono::seconds(10));
    if (there) {
        Client client(channel);
        grpc::ByteBuffer small = BufferOf(8), large = BufferOf(bytes);
        auto sync = [&] { client.Begin(small), client.Next(); };

        MedianUs(calls / 10 + 1, sync);
        printf("sync_us,%.2f\n", MedianUs(calls, sync));
        printf("async_us,%.2f\n",
               MedianUs(calls, [&] { client.ByCallback(small); }));
        printf("calls,%.0f\n", CallsASecond(client, small, 4 * calls));
        double us = MedianUs(5, [&] { client.Begin(large), client.Next(); });
        printf("gb,%.3f\n", 2e-3 * double(bytes) / us);
    }
    kill(server, SIGKILL);
    waitpid(server, nullptr, 0);
    return there ? 0 : 1;
}
