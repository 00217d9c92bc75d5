// The bench's experiments in ns-3: `experiments flows KEY=VALUE...`, `experiments frames KEY=VALUE...`; prints JSON.
//
// Hosts on links of `access_bps` at two routers, one link of `rate_bps` between these. A point-to-point frame of ns-3 has
// 2 bytes of header where Ethernet has 14, so all rates are lowered until a full frame takes as long as on Ethernet, and
// queues hold as many full frames. Times are in seconds. A device's own queue is the link's; there is no other.

#include "ns3/applications-module.h"
#include "ns3/core-module.h"
#include "ns3/internet-module.h"
#include "ns3/network-module.h"
#include "ns3/point-to-point-module.h"

#include <fstream>
#include <iostream>
#include <map>
#include <memory>
#include <sstream>

using namespace ns3;

namespace
{

const double FULL_FRAME = 1500 + 2;
const double ETHERNET_FRAME = 1500 + 14;
const uint32_t SEGMENT = 1448; // with timestamps in the header
const uint16_t PORT = 5000;
const uint16_t PROBE_PORT = 6000;
const uint32_t PROBE_BYTES = 32;
const double QUIET_S = 0.5; // probes alone, before the first flow

std::map<std::string, std::string> g_given;

double
Figure(const std::string& key)
{
    return std::stod(g_given.at(key));
}

std::vector<double>
Figures(const std::string& key)
{
    std::vector<double> found;
    std::stringstream text(g_given.at(key));
    for (std::string item; std::getline(text, item, ',');)
    {
        found.push_back(std::stod(item));
    }
    return found;
}

template <typename T>
std::string
Listed(const std::vector<T>& values)
{
    std::ostringstream text;
    text.precision(12);
    text << "[";
    for (size_t i = 0; i < values.size(); ++i)
    {
        text << (i ? "," : "") << values[i];
    }
    text << "]";
    return text.str();
}

// Seconds of virtual time from the first flow's possible start on.
double
Now()
{
    return Simulator::Now().GetSeconds() - QUIET_S;
}

NetDeviceContainer
Join(Ptr<Node> one, Ptr<Node> other, double bps, double delay_s, uint32_t frames)
{
    static uint32_t number = 0;
    PointToPointHelper link;
    link.SetDeviceAttribute("DataRate", DataRateValue(DataRate(std::llround(bps * FULL_FRAME / ETHERNET_FRAME))));
    link.SetChannelAttribute("Delay", TimeValue(Seconds(delay_s)));
    const auto bytes = static_cast<uint32_t>(frames * FULL_FRAME);
    link.SetQueue("ns3::DropTailQueue<Packet>", "MaxSize", QueueSizeValue(QueueSize(QueueSizeUnit::BYTES, bytes)));
    link.DisableFlowControl(); // with it, the layer above drops what a full device would
    NetDeviceContainer devices = link.Install(one, other);
    Ipv4AddressHelper addresses;
    const std::string network = "10." + std::to_string(number / 250) + "." + std::to_string(number % 250) + ".0";
    addresses.SetBase(network.c_str(), "255.255.255.0");
    ++number;
    addresses.Assign(devices);
    return devices;
}

Ipv4Address
AddressOf(Ptr<Node> node)
{
    return node->GetObject<Ipv4>()->GetAddress(1, 0).GetLocal();
}

// As many pairs of hosts as `delays_s` has entries, each sender's link with that delay.
struct Dumbbell
{
    NodeContainer left;
    NodeContainer right;
    NetDeviceContainer bottleneck;

    explicit Dumbbell(const std::vector<double>& delays_s)
    {
        NodeContainer routers(2);
        left.Create(delays_s.size());
        right.Create(delays_s.size());
        InternetStackHelper stack;
        stack.SetIpv6StackInstall(false);
        stack.Install(routers);
        stack.Install(left);
        stack.Install(right);
        const uint32_t plenty = 100000;
        for (size_t i = 0; i < delays_s.size(); ++i)
        {
            Join(left.Get(i), routers.Get(0), Figure("access_bps"), delays_s[i], plenty);
            Join(right.Get(i), routers.Get(1), Figure("access_bps"), 0.0, plenty);
        }
        bottleneck = Join(routers.Get(0),
                          routers.Get(1),
                          Figure("rate_bps"),
                          Figure("delay_s"),
                          static_cast<uint32_t>(Figure("queue_frames")));
        Ipv4GlobalRoutingHelper::PopulateRoutingTables();
    }
};

// --- TCP flows ---------------------------------------------------------------------------------------------------

struct Flow
{
    Ptr<BulkSendApplication> sender;
    uint64_t bytes = 0;   // received
    uint64_t counted = 0; // of these, after the warm-up
    double done_s = -1;   // when the last of a message arrived
    uint32_t timeouts = 0;
    std::vector<std::string> events; // of congestion, after the warm-up: when, how many segments had been received
};

std::vector<std::unique_ptr<Flow>> g_flows;
uint64_t g_dropped = 0;
uint64_t g_lost = 0;
double g_warm_up_s = 0;
std::vector<double> g_probes;   // one-way times after the warm-up
double g_idle_probe_s = 1e9;    // the shortest before the flows

void
Received(Flow* flow, Ptr<const Packet> packet, const Address&)
{
    flow->bytes += packet->GetSize();
    if (Now() >= g_warm_up_s)
    {
        flow->counted += packet->GetSize();
    }
    if (flow->bytes >= static_cast<uint64_t>(Figure("message_bytes")))
    {
        flow->done_s = Now();
    }
}

void
StateChanged(Flow* flow, TcpSocketState::TcpCongState_t, TcpSocketState::TcpCongState_t now)
{
    if (now == TcpSocketState::CA_LOSS)
    {
        ++flow->timeouts;
    }
    if ((now == TcpSocketState::CA_RECOVERY || now == TcpSocketState::CA_LOSS) && Now() >= g_warm_up_s)
    {
        flow->events.push_back(Listed(std::vector<double>{Now(), static_cast<double>(flow->counted) / SEGMENT}));
    }
}

void
Watch(Flow* flow)
{
    flow->sender->GetSocket()->TraceConnectWithoutContext("CongState", MakeBoundCallback(&StateChanged, flow));
}

void
Count(uint64_t* counter, Ptr<const Packet>)
{
    if (Now() >= g_warm_up_s)
    {
        ++*counter;
    }
}

void
ProbeArrived(Ptr<Socket> socket)
{
    while (Ptr<Packet> packet = socket->Recv())
    {
        int64_t sent_ns = 0;
        packet->CopyData(reinterpret_cast<uint8_t*>(&sent_ns), sizeof sent_ns);
        const double took_s = (Simulator::Now().GetNanoSeconds() - sent_ns) / 1e9;
        if (Now() < 0)
        {
            g_idle_probe_s = std::min(g_idle_probe_s, took_s);
        }
        else if (Now() >= g_warm_up_s)
        {
            g_probes.push_back(took_s);
        }
    }
}

void
Probe(Ptr<Socket> socket, Ptr<ExponentialRandomVariable> pause)
{
    uint8_t payload[PROBE_BYTES] = {};
    const int64_t now_ns = Simulator::Now().GetNanoSeconds();
    std::copy_n(reinterpret_cast<const uint8_t*>(&now_ns), sizeof now_ns, payload);
    socket->Send(Create<Packet>(payload, PROBE_BYTES));
    Simulator::Schedule(Seconds(pause->GetValue()), &Probe, socket, pause);
}

void
StartProbes(const Dumbbell& net, uint32_t pair)
{
    Ptr<Socket> receiver = Socket::CreateSocket(net.right.Get(pair), UdpSocketFactory::GetTypeId());
    receiver->Bind(InetSocketAddress(Ipv4Address::GetAny(), PROBE_PORT));
    receiver->SetRecvCallback(MakeCallback(&ProbeArrived));
    Ptr<Socket> sender = Socket::CreateSocket(net.left.Get(pair), UdpSocketFactory::GetTypeId());
    sender->Connect(InetSocketAddress(AddressOf(net.right.Get(pair)), PROBE_PORT));
    Ptr<ExponentialRandomVariable> pause = CreateObject<ExponentialRandomVariable>();
    pause->SetAttribute("Mean", DoubleValue(Figure("probe_pause_s")));
    Simulator::Schedule(MilliSeconds(1), &Probe, sender, pause);
}

void
AsLinux()
{
    const uint32_t buffer = 1 << 25;
    const std::string control = g_given.at("congestion_control") == "cubic" ? "ns3::TcpCubic" : "ns3::TcpLinuxReno";
    Config::SetDefault("ns3::TcpL4Protocol::SocketType", StringValue(control));
    Config::SetDefault("ns3::TcpL4Protocol::RecoveryType", StringValue("ns3::TcpClassicRecovery"));
    Config::SetDefault("ns3::TcpSocket::SegmentSize", UintegerValue(SEGMENT));
    Config::SetDefault("ns3::TcpSocket::InitialCwnd", UintegerValue(10));
    Config::SetDefault("ns3::TcpSocket::DelAckCount", UintegerValue(2));
    Config::SetDefault("ns3::TcpSocket::DelAckTimeout", TimeValue(MilliSeconds(40)));
    Config::SetDefault("ns3::TcpSocket::SndBufSize", UintegerValue(buffer));
    Config::SetDefault("ns3::TcpSocket::RcvBufSize", UintegerValue(buffer));
    Config::SetDefault("ns3::TcpSocketBase::MinRto", TimeValue(MilliSeconds(200)));
    Config::SetDefault("ns3::TcpSocketBase::ClockGranularity", TimeValue(MilliSeconds(1)));
    Config::SetDefault("ns3::TcpSocketBase::Sack", BooleanValue(true));
    Config::SetDefault("ns3::TcpSocketBase::Timestamp", BooleanValue(true));
    if (g_given.count("slow_start_frames"))
    {
        const auto bytes = static_cast<uint64_t>(Figure("slow_start_frames")) * SEGMENT;
        Config::SetDefault("ns3::TcpSocket::InitialSlowStartThreshold", UintegerValue(bytes));
    }
}

// rate_bps access_bps delay_s queue_frames loss extra_delays_s starts_s message_bytes congestion_control warm_up_s
// duration_s probe_pause_s seed; slow_start_frames, if slow start is not to go on until something is lost
void
Flows()
{
    AsLinux();
    SeedManager::SetRun(static_cast<uint64_t>(Figure("seed")));
    std::vector<double> delays = Figures("extra_delays_s");
    const std::vector<double> starts = Figures("starts_s");
    const auto message = static_cast<uint64_t>(Figure("message_bytes"));
    g_warm_up_s = Figure("warm_up_s");
    const uint32_t flows = delays.size();
    delays.push_back(0.0); // the probes' own hosts
    Dumbbell net(delays);

    net.bottleneck.Get(0)->GetObject<PointToPointNetDevice>()->GetQueue()->TraceConnectWithoutContext(
        "Drop", MakeBoundCallback(&Count, &g_dropped));
    if (Figure("loss") > 0)
    {
        Ptr<RateErrorModel> errors = CreateObject<RateErrorModel>();
        errors->SetUnit(RateErrorModel::ERROR_UNIT_PACKET);
        errors->SetRate(Figure("loss"));
        net.bottleneck.Get(1)->SetAttribute("ReceiveErrorModel", PointerValue(errors));
        net.bottleneck.Get(1)->TraceConnectWithoutContext("PhyRxDrop", MakeBoundCallback(&Count, &g_lost));
    }
    for (uint32_t i = 0; i < flows; ++i)
    {
        g_flows.push_back(std::make_unique<Flow>());
        Flow* flow = g_flows.back().get();
        PacketSinkHelper sink("ns3::TcpSocketFactory", InetSocketAddress(Ipv4Address::GetAny(), PORT));
        sink.Install(net.right.Get(i)).Get(0)->TraceConnectWithoutContext("Rx", MakeBoundCallback(&Received, flow));
        BulkSendHelper bulk("ns3::TcpSocketFactory", InetSocketAddress(AddressOf(net.right.Get(i)), PORT));
        bulk.SetAttribute("MaxBytes", UintegerValue(message));
        bulk.SetAttribute("SendSize", UintegerValue(SEGMENT));
        flow->sender = bulk.Install(net.left.Get(i)).Get(0)->GetObject<BulkSendApplication>();
        flow->sender->SetStartTime(Seconds(QUIET_S + starts[i]));
        Simulator::Schedule(Seconds(QUIET_S + starts[i]) + NanoSeconds(1), &Watch, flow);
    }
    StartProbes(net, flows);
    Simulator::Stop(Seconds(QUIET_S + Figure("duration_s")));
    Simulator::Run();

    std::vector<double> goodputs;
    std::vector<double> done;
    std::vector<std::string> events;
    std::vector<uint32_t> timeouts;
    for (const auto& flow : g_flows)
    {
        goodputs.push_back(flow->counted * 8 / (Figure("duration_s") - g_warm_up_s));
        done.push_back(flow->done_s);
        events.push_back(Listed(flow->events));
        timeouts.push_back(flow->timeouts);
    }
    for (double& took_s : g_probes)
    {
        took_s -= g_idle_probe_s;
    }
    std::cout << "{\"goodput_bps\":" << Listed(goodputs) << ",\"done_s\":" << Listed(done)
              << ",\"events\":" << Listed(events) << ",\"timeouts\":" << Listed(timeouts)
              << ",\"dropped\":" << g_dropped << ",\"lost\":" << g_lost << ",\"waits_s\":" << Listed(g_probes) << "}\n";
}

// --- single frames -----------------------------------------------------------------------------------------------

std::vector<double> g_sent_s;
std::vector<double> g_arrived_s;

void
FrameArrived(Ptr<Socket> socket)
{
    while (socket->Recv())
    {
        g_arrived_s.push_back(Simulator::Now().GetNanoSeconds() / 1e9);
    }
}

void
SendFrame(Ptr<Socket> socket)
{
    g_sent_s.push_back(Simulator::Now().GetNanoSeconds() / 1e9);
    socket->Send(Create<Packet>(1472));
}

// rate_bps access_bps delay_s queue_frames times: a file with nanoseconds, one a line
void
Frames()
{
    Dumbbell net({0.0});
    Ptr<Socket> receiver = Socket::CreateSocket(net.right.Get(0), UdpSocketFactory::GetTypeId());
    receiver->SetAttribute("RcvBufSize", UintegerValue(1 << 30));
    receiver->Bind(InetSocketAddress(Ipv4Address::GetAny(), PROBE_PORT));
    receiver->SetRecvCallback(MakeCallback(&FrameArrived));
    Ptr<Socket> sender = Socket::CreateSocket(net.left.Get(0), UdpSocketFactory::GetTypeId());
    sender->Connect(InetSocketAddress(AddressOf(net.right.Get(0)), PROBE_PORT));
    std::ifstream file(g_given.at("times"));
    for (int64_t at_ns = 0; file >> at_ns;)
    {
        Simulator::Schedule(NanoSeconds(at_ns), &SendFrame, sender);
    }
    Simulator::Run();
    std::cout << "{\"sent_s\":" << Listed(g_sent_s) << ",\"arrived_s\":" << Listed(g_arrived_s) << "}\n";
}

} // namespace

int
main(int count, char** words)
{
    for (int i = 2; i < count; ++i)
    {
        const std::string word = words[i];
        const size_t at = word.find('=');
        g_given[word.substr(0, at)] = word.substr(at + 1);
    }
    std::string(words[1]) == "flows" ? Flows() : Frames();
    Simulator::Destroy();
    return 0;
}
