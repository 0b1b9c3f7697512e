<?php
// An app that uses what a tenant has: rows in PostgreSQL, a counter in Redis, files on its volume. Like Nextcloud it reads where its
// database is from config.php, which it has written when it was installed.

const CONFIG = '/var/www/html/config/config.php';
const FILES = '/var/www/html/data';

function config(): array
{
    $CONFIG = [];
    if (is_file(CONFIG)) {
        include CONFIG;
    }
    return $CONFIG;
}

function save(array $config): void
{
    file_put_contents(CONFIG . '.new', "<?php\n\$CONFIG = " . var_export($config, true) . ";\n");
    chmod(CONFIG . '.new', 0640);
    rename(CONFIG . '.new', CONFIG);
}

function database(array $config): PDO
{
    [$host, $port] = explode(':', $config['dbhost'] . ':5432');
    $source = "pgsql:host=$host;port=$port;dbname={$config['dbname']};connect_timeout=3";
    return new PDO($source, $config['dbuser'], $config['dbpassword'], [PDO::ATTR_ERRMODE => PDO::ERRMODE_EXCEPTION]);
}

function redis(): Redis
{
    $redis = new Redis();
    $redis->connect(getenv('REDIS_HOST'), (int) (getenv('REDIS_HOST_PORT') ?: 6379), 3);
    $redis->auth(getenv('REDIS_HOST_PASSWORD'));
    return $redis;
}

function status(): array
{
    $config = config();
    $database = database($config);
    $installed = $database->query('SELECT version FROM app')->fetchColumn();
    return [
        'installed' => true,
        'maintenance' => false,
        'needsDbUpgrade' => $installed !== getenv('NEXTCLOUD_VERSION'),
        'versionstring' => getenv('NEXTCLOUD_VERSION'),
        'notes' => $database->query('SELECT text FROM notes ORDER BY id')->fetchAll(PDO::FETCH_COLUMN),
        'files' => array_values(array_diff(scandir(FILES), ['.', '..'])),
        'visits' => redis()->incr('visits'),
        'domains' => array_values($config['trusted_domains'] ?? []),
    ];
}
